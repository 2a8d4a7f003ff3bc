// Measures the memory that all threads of a program allocate by operator new. Include it in only one source file of a test program: it replaces operator new.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <thread>

namespace {

std::atomic<std::int64_t> in_use{0}, peak{0};

// Allocates memory. The size of the allocation is stored `alignment` bytes before the returned address, so that the memory can be counted when it is freed.
void* take(std::size_t bytes, std::size_t alignment) {
  auto* start = static_cast<char*>(std::aligned_alloc(alignment, (bytes + 2 * alignment - 1) / alignment * alignment));
  if (start == nullptr) throw std::bad_alloc();
  *reinterpret_cast<std::size_t*>(start) = bytes;
  const std::int64_t now = in_use += static_cast<std::int64_t>(bytes);
  std::int64_t most = peak;
  while (now > most && !peak.compare_exchange_weak(most, now)) {
  }
  return start + alignment;
}

void give(void* memory, std::size_t alignment) {
  if (memory == nullptr) return;
  char* start = static_cast<char*>(memory) - alignment;
  in_use -= static_cast<std::int64_t>(*reinterpret_cast<std::size_t*>(start));
  std::free(start);
}

constexpr std::size_t kDefault = alignof(std::max_align_t);

}  // namespace

void* operator new(std::size_t bytes) { return take(bytes, kDefault); }
void* operator new(std::size_t bytes, std::align_val_t alignment) { return take(bytes, static_cast<std::size_t>(alignment)); }
void operator delete(void* memory) noexcept { give(memory, kDefault); }
void operator delete(void* memory, std::size_t) noexcept { give(memory, kDefault); }
void operator delete(void* memory, std::align_val_t alignment) noexcept { give(memory, static_cast<std::size_t>(alignment)); }
void operator delete(void* memory, std::size_t, std::align_val_t alignment) noexcept { give(memory, static_cast<std::size_t>(alignment)); }

namespace polyhead::test {

// Runs f on a new thread, which has no scratch memory yet. Returns the peak of allocated bytes during f, minus the bytes allocated before.
template <class F>
std::int64_t peak_of(const F& f) {
  const std::int64_t before = in_use;
  peak = before;
  std::thread(f).join();
  return peak - before;
}

}  // namespace polyhead::test
