#include "cpu/scratch_memory.h"

#ifndef POLYHEAD_NO_THREADS
#include <pthread.h>
#endif

#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include "core/sanitizers.h"

namespace polyhead::cpu {
namespace {

using Block = ScratchMemory::Block;
using Blocks = std::array<Block, 3>;

// Memory blocks are aligned to a page. Without this, the addresses that a kernel stores to could be a multiple of 4096 bytes away from the inputs that it loads,
// and attention of 64 queries and keys would take 10 % longer.
constexpr std::size_t kPageBytes = 4096;
constexpr std::align_val_t kPage{kPageBytes};
// Size in bytes of the largest memory block that a thread keeps. Calls that need a larger block take 1 ms or longer, so allocating it costs them little.
constexpr std::size_t kMostKept = 256 << 10;
constexpr bool kKeep = !kAddressSanitizer;  // with AddressSanitizer blocks are freed at once, so that it reports the use of a freed block

thread_local constinit Blocks kept{};
thread_local constinit bool freed_at_exit = false;

#ifdef POLYHEAD_NO_THREADS
// In a build without threads, the only thread keeps its memory blocks until the process ends.
struct ThreadExit {
  bool covers_this_thread() { return freed_at_exit = true; }
} thread_exit;
#else
// Frees a thread's kept memory blocks when the thread ends. A thread_local variable with a destructor is not used for this, because glibc ends the process if
// there is no memory to register the destructor.
struct ThreadExit {
  ThreadExit() : valid(pthread_key_create(&key, free_blocks) == 0) {}
  ~ThreadExit() {
    if (std::exchange(valid, false)) pthread_key_delete(key);
  }
  bool covers_this_thread() { return freed_at_exit || (freed_at_exit = valid && pthread_setspecific(key, &kept) == 0); }

  static void free_blocks(void* blocks) {
    freed_at_exit = false;
    for (Block& block : *static_cast<Blocks*>(blocks)) ::operator delete(std::exchange(block, {}).memory, kPage);
  }

  pthread_key_t key{};
  bool valid;
} thread_exit;
#endif

}  // namespace

ScratchMemory::ScratchMemory(std::int64_t bytes, const Workspace* workspace) : block_{nullptr, static_cast<std::size_t>(bytes)} {
  if (bytes == 0) return;
  if (workspace != nullptr && block_.bytes > kMostKept) {
    shared_ = workspace->tensor(DType::u8, {bytes + static_cast<std::int64_t>(kPageBytes)});
    const auto address = reinterpret_cast<std::uintptr_t>(shared_.view().data());
    block_.memory = reinterpret_cast<void*>((address + kPageBytes - 1) / kPageBytes * kPageBytes);
    return;
  }
  Block* best = nullptr;
  for (Block& block : kept) {
    if (block.bytes >= block_.bytes && (best == nullptr || block.bytes < best->bytes)) best = &block;
  }
  block_ = best != nullptr ? std::exchange(*best, {}) : Block{::operator new(block_.bytes, kPage), block_.bytes};
}

ScratchMemory::~ScratchMemory() {
  if (block_.memory == nullptr || shared_) return;
  if (kKeep && block_.bytes <= kMostKept && thread_exit.covers_this_thread()) {
    // Free the smallest block, because a larger block serves more calls.
    Block& least = *std::min_element(kept.begin(), kept.end(), [](const Block& a, const Block& b) { return a.bytes < b.bytes; });
    if (least.bytes < block_.bytes) std::swap(least, block_);
  }
  ::operator delete(block_.memory, kPage);
}

}  // namespace polyhead::cpu
