// Memory for one thread's work, on a cache line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace polyhead::cpu {

class ScratchMemory {
 public:
  explicit ScratchMemory(std::int64_t bytes) : memory_(::operator new(static_cast<std::size_t>(bytes), kLine)) {}
  void* get() const { return memory_.get(); }

 private:
  static constexpr std::align_val_t kLine{64};
  struct Free {
    void operator()(void* memory) const { ::operator delete(memory, kLine); }
  };
  std::unique_ptr<void, Free> memory_;
};

}  // namespace polyhead::cpu
