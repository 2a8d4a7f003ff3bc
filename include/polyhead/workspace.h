// Memory that calls leave to the next ones.
#pragma once

#include <cstdint>
#include <memory>

#include "polyhead/tensor.h"

namespace polyhead {

// What layers need between their steps comes from here where a call is given a workspace, and goes back when the call, or what it saved,
// ends: the next call finds it instead of asking the system, which clears new memory page by page. A handle: copies share their memory,
// which lasts as long as a handle or a tensor out of it. At most half as much again is idle as was in use at once. Any number of threads
// may use one, and a process that was forked. No result depends on it: nothing but memory is kept, so that parameters may change between calls.
class Workspace {
 public:
  Workspace();
  Workspace(const Workspace&) = default;  // and no moves: a handle always has its memory
  Workspace& operator=(const Workspace&) = default;

  // Elements have no value yet. Error where the shape is negative or does not fit in memory.
  Tensor tensor(DType dtype, const Shape& shape) const;
  std::int64_t idle_bytes() const;
  void clear() const;  // gives the idle memory back and forgets how much was in use

 private:
  struct Pool;
  std::shared_ptr<Pool> pool_;
};

// From the workspace where there is one, else of its own.
inline Tensor uninitialised(DType dtype, const Shape& shape, const Workspace* workspace) {
  return workspace != nullptr ? workspace->tensor(dtype, shape) : Tensor::uninitialised(dtype, shape);
}

}  // namespace polyhead
