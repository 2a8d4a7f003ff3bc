// Memory for one thread's work, aligned to a page.
#pragma once

#include <cstddef>
#include <cstdint>

#include "polyhead/workspace.h"

namespace polyhead::cpu {

// A thread keeps its last few small blocks for the next call: the allocator needs longer for aligned memory than a small call for its arithmetic.
// A larger block comes from the workspace if there is one.
class ScratchMemory {
 public:
  explicit ScratchMemory(std::int64_t bytes, const Workspace* workspace = nullptr);
  ScratchMemory(const ScratchMemory&) = delete;
  ScratchMemory& operator=(const ScratchMemory&) = delete;
  ~ScratchMemory();
  void* get() const { return block_.memory; }

  struct Block {
    void* memory;
    std::size_t bytes;
  };

 private:
  Block block_;
  Tensor shared_;  // the workspace's memory that block_ is in; absent: block_ is the thread's
};

}  // namespace polyhead::cpu
