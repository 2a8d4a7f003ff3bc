// Memory for one thread's work, from the beginning of a page.
#pragma once

#include <cstddef>
#include <cstdint>

namespace polyhead::cpu {

// A thread keeps its last few small blocks for the next call: the allocator takes longer over memory on a cache line than a small call computes.
class ScratchMemory {
 public:
  explicit ScratchMemory(std::int64_t bytes);
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
};

}  // namespace polyhead::cpu
