// A workspace holds memory that calls reuse and, if parameters are constant, a cache of packed parameters. Pass a workspace to calls that are repeated.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "polyhead/tensor.h"

#pragma GCC visibility push(default)
namespace polyhead {

// A call takes the memory of its temporary tensors from its workspace and gives it back at its end. Tensors in `saved` give their memory back when `saved` is
// destroyed. Later calls reuse the memory; new memory would cost a page fault per 4 KiB. Copies of a workspace share its memory. Idle memory is capped at 1.5 x
// the largest amount that was in use at once. Any number of threads may use one workspace, also after a fork. Results do not depend on the workspace.
//
// With Parameters::constant the first call also caches a copy of each parameter, packed for the kernels (in float32 for 16-bit parameters). After you change a
// parameter, call clear(): until then calls use the old values. The copies of destroyed parameters stay in memory until clear() too.
enum class Parameters : std::uint8_t { may_change, constant };

class Workspace {
 public:
  Workspace();  // Makes a workspace for parameters that may change.
  explicit Workspace(Parameters parameters);
  Workspace(const Workspace&) = default;  // not movable: a moved-from workspace would have no memory
  Workspace& operator=(const Workspace&) = default;

  // Returns a tensor whose elements are not set. Error if an extent is negative or the size does not fit in memory.
  Tensor tensor(DType dtype, const Shape& shape) const;
  std::int64_t idle_bytes() const;
  void clear() const;  // Frees the idle memory, forgets the largest amount in use, and empties the cache of parameters.
  Parameters parameters() const;

 private:
  friend std::shared_ptr<const void> cached_parameter(const Workspace& workspace, const Tensor& parameter, const void* use,
                                                      const std::function<std::shared_ptr<const void>()>& make);
  struct Pool;
  std::shared_ptr<Pool> pool_;
};

// Returns a tensor from `workspace`, or a newly allocated tensor if `workspace` is nullptr. The elements are not set.
inline Tensor uninitialised(DType dtype, const Shape& shape, const Workspace* workspace) {
  return workspace != nullptr ? workspace->tensor(dtype, shape) : Tensor::uninitialised(dtype, shape);
}

}  // namespace polyhead
#pragma GCC visibility pop
