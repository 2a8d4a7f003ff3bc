// Divides one piece of memory into arrays. Only kernel sources (*_kernel.cc) include this file.
#pragma once

#include <cstdint>

#include "cpu/vector.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// Places arrays one after the other, each at the beginning of a cache line. If memory == nullptr, an Arena only counts the bytes that the arrays need.
class Arena {
 public:
  explicit Arena(void* memory) : memory_(static_cast<char*>(memory)) {}
  template <class T>
  void allocate(T*& array, std::int64_t count) {
    constexpr std::int64_t kLine = 64;
    array = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + used_);
    // Allocate one more cache line, because the last row of a transposition or of a bias may be read in whole vectors, beyond its end.
    used_ += (count * static_cast<std::int64_t>(sizeof(T)) + 2 * kLine - 1) / kLine * kLine;
  }
  std::int64_t used() const { return used_; }

 private:
  char* memory_;
  std::int64_t used_ = 0;
};

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
