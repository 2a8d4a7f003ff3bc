// ScratchMemory is the scratch memory that one thread needs for a kernel call. It is aligned to a page.
#pragma once

#include <cstddef>
#include <cstdint>

#include "polyhead/workspace.h"

namespace polyhead::cpu {

// Each thread keeps up to three small memory blocks for its next calls, because allocating aligned memory takes longer than the arithmetic of a
// small call. Larger memory comes from the workspace if one is given.
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
  Tensor shared_;  // owns the memory of block_ if it came from the workspace; empty otherwise
};

}  // namespace polyhead::cpu
