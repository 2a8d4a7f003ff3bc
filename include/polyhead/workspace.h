// Memory that calls leave to the next ones and, where parameters are constant, weights in the kernels' order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "polyhead/tensor.h"

namespace polyhead {

// What layers need between their steps comes from here where a call is given a workspace, and goes back when the call, or what it saved,
// ends: the next call finds it instead of asking the system, which clears new memory page by page. A handle: copies share their memory,
// of which a tensor keeps its own. At most half as much again is idle as was in use at once. Any number of threads
// may use one, and a process that was forked. No result depends on it.
//
// Where the parameters of the layers that use it are constant, weights are kept as well, in the order in which the kernels read them: a second
// copy (in float32 for 16-bit storage) that the first call makes, and not every one. A parameter that changes all the same needs clear(), else
// the old one is used; one that has gone is kept until then.
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
  void clear() const;  // gives the idle memory back, forgets how much was in use and drops what was kept of parameters
  Parameters parameters() const;

 private:
  friend std::shared_ptr<const void> kept_of(const Workspace& workspace, const Tensor& parameter, const void* maker,
                                             const std::function<std::shared_ptr<const void>()>& make);
  struct Pool;
  std::shared_ptr<Pool> pool_;
};

// From the workspace where there is one, else of its own.
inline Tensor uninitialised(DType dtype, const Shape& shape, const Workspace* workspace) {
  return workspace != nullptr ? workspace->tensor(dtype, shape) : Tensor::uninitialised(dtype, shape);
}

}  // namespace polyhead
