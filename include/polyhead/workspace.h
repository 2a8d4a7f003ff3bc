// Memory that calls reuse and, where parameters are constant, a cache of packed parameters. Worth passing to every call that is repeated.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "polyhead/tensor.h"

namespace polyhead {

// A call that is given a workspace takes its temporary tensors from it and returns them when the call, or its saved pass, ends. Later calls reuse
// the memory; new memory costs a page fault per 4 KiB. Copies of a workspace share its memory. Idle memory is capped at 1.5 x the peak in use.
// Any number of threads may use one, also after a fork. No result depends on it.
//
// Parameters::constant also caches parameters in the order in which the kernels read them: a second copy, in float32 for 16-bit storage, that
// the first call makes. After a change of a parameter call clear(); until then the old values are used, and the memory of a parameter that was
// destroyed stays allocated.
enum class Parameters : std::uint8_t { may_change, constant };

class Workspace {
 public:
  Workspace();  // parameters may change
  explicit Workspace(Parameters parameters);
  Workspace(const Workspace&) = default;  // and no moves: a handle always has its memory
  Workspace& operator=(const Workspace&) = default;

  // Elements have no value yet. Error where the shape is negative or does not fit in memory.
  Tensor tensor(DType dtype, const Shape& shape) const;
  std::int64_t idle_bytes() const;
  void clear() const;  // frees the idle memory, resets the peak and empties the cache of parameters
  Parameters parameters() const;

 private:
  friend std::shared_ptr<const void> kept_of(const Workspace& workspace, const Tensor& parameter, const void* maker,
                                             const std::function<std::shared_ptr<const void>()>& make);
  struct Pool;
  std::shared_ptr<Pool> pool_;
};

// From the workspace if there is one, else newly allocated.
inline Tensor uninitialised(DType dtype, const Shape& shape, const Workspace* workspace) {
  return workspace != nullptr ? workspace->tensor(dtype, shape) : Tensor::uninitialised(dtype, shape);
}

}  // namespace polyhead
