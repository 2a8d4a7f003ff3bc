// Replaces operator new of a test program, so that memory can run out at any allocation. Include it in one source file of the program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "polyhead/error.h"

namespace polyhead::io {

inline thread_local std::int64_t allocations_left = -1;  // -1: no limit

inline void* allocate(std::size_t bytes, std::size_t alignment) {
  if (allocations_left == 0) throw std::bad_alloc();
  if (allocations_left > 0) --allocations_left;
  void* memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  return memory != nullptr ? memory : throw std::bad_alloc();
}

// Calls f with memory for 0, 1, 2, … allocations until f succeeds, and check() after each failed call. Returns the number of failed calls.
// A call fails by throwing std::bad_alloc or Error; anything else ends the test.
template <class F, class Check>
std::int64_t run_out_of_memory(const F& f, const Check& check) {
  for (std::int64_t limit = 0;; ++limit) {
    allocations_left = limit;
    try {
      f();
      allocations_left = -1;
      return limit;
    } catch (const std::bad_alloc&) {
    } catch (const Error&) {
    }
    allocations_left = -1;
    check();
  }
}

}  // namespace polyhead::io

void* operator new(std::size_t bytes) { return polyhead::io::allocate(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) { return polyhead::io::allocate(bytes, static_cast<std::size_t>(alignment)); }
// std::stable_sort allocates its buffer with this operator. It must be replaced too: a sanitizer has its own, whose memory may not be freed by the
// operator delete below.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
// Not inlined: otherwise GCC sees a call of operator new paired with free(), and warns.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
