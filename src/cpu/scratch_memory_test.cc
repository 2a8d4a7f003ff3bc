// Tests which memory blocks a thread keeps for later calls, and that the blocks are freed when the thread ends.
#include "cpu/scratch_memory.h"

#include <gtest/gtest.h>

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <thread>
#include <vector>

#include "core/sanitizers.h"
#include "support/child_process.h"

namespace {

std::atomic<int> aligned_blocks{0};  // number of aligned allocations that the process has not freed

}  // namespace

void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto unit = static_cast<std::size_t>(alignment);
  void* const memory = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
  if (memory == nullptr) throw std::bad_alloc();
  ++aligned_blocks;
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  if (memory != nullptr) --aligned_blocks;
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t alignment) noexcept { operator delete(memory, alignment); }

namespace polyhead::cpu::test {
namespace {

TEST(ScratchMemory, BlocksInUseAreApartAndAligned) {
  for (int round = 0; round < 3; ++round) {
    const ScratchMemory a(100), b(1 << 12), c(100), d(70'000), e(1 << 20), f(100);
    const ScratchMemory* const all[] = {&a, &b, &c, &d, &e, &f};
    const std::size_t sizes[] = {100, 1 << 12, 100, 70'000, 1 << 20, 100};
    for (std::size_t i = 0; i < std::size(all); ++i) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(all[i]->get()) % 4096, 0u);
      std::memset(all[i]->get(), static_cast<int>(i), sizes[i]);
    }
    for (std::size_t i = 0; i < std::size(all); ++i) {
      const auto* bytes = static_cast<const unsigned char*>(all[i]->get());
      for (std::size_t at = 0; at < sizes[i]; ++at) ASSERT_EQ(bytes[at], i) << at;
    }
  }
}

TEST(ScratchMemory, ZeroBytesNeedNoMemory) { EXPECT_EQ(ScratchMemory(0).get(), nullptr); }

TEST(ScratchMemory, AFreedBlockServesASmallerRequest) {
  if (kAddressSanitizer) GTEST_SKIP() << "with AddressSanitizer no memory blocks are kept, so that it can report reads of freed memory";
  std::thread([] {  // a new thread has no kept blocks
    void* first = nullptr;
    {
      const ScratchMemory block(200'000);
      first = block.get();
    }
    const ScratchMemory again(1000);
    EXPECT_EQ(again.get(), first);
    const ScratchMemory other(1000);
    EXPECT_NE(other.get(), first);
  }).join();
}

TEST(ScratchMemory, AThreadFreesWhatItKeptWhenItEnds) {
  const int before = aligned_blocks;
  std::thread([] { const ScratchMemory a(1000), b(70'000); }).join();
  EXPECT_EQ(aligned_blocks, before);
}

// The destructor of a thread_local object uses scratch memory again while the thread ends.
TEST(ScratchMemory, ServesAThreadThatEnds) {
  struct Late {
    ~Late() {
      const ScratchMemory block(1000);
      std::memset(block.get(), 1, 1000);
    }
  };
  std::thread([] {
    thread_local Late late;
    (void)late;
    const ScratchMemory block(1000);
    std::memset(block.get(), 1, 1000);
  }).join();
}

TEST(ScratchMemory, ALargeBlockComesFromTheWorkspace) {
  const Workspace workspace;
  const void* first = nullptr;
  {
    const ScratchMemory block(1 << 20, &workspace);
    first = block.get();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 4096, 0u);
    std::memset(block.get(), 1, 1 << 20);
    EXPECT_EQ(workspace.idle_bytes(), 0);
  }
  EXPECT_GE(workspace.idle_bytes(), 1 << 20);
  EXPECT_EQ(ScratchMemory(1 << 20, &workspace).get(), first);
}

// At its first use of scratch memory, a thread registers a function that will free its blocks. If there is no memory for that, the thread must keep no blocks.
TEST(ScratchMemory, AThreadThatCannotRegisterItsEndKeepsNoBlocks) {
  if (kAddressSanitizer) GTEST_SKIP() << "AddressSanitizer ends a process in which an allocation fails";
  const auto body = [] {
    std::thread([] {
      std::optional<ScratchMemory> block(1000);
      const rlimit none{0, 0};
      setrlimit(RLIMIT_AS, &none);
      void* volatile taken = nullptr;
      for (std::size_t bytes = 1 << 20; bytes >= 8; bytes /= 2) {
        do taken = std::malloc(bytes);
        while (taken != nullptr);
      }
      block.reset();
      _exit(0);  // exit() would allocate memory, which fails here
    }).join();
    return 1;
  };
  EXPECT_EQ(polyhead::test::status_of_child(body), 0);
}

}  // namespace
}  // namespace polyhead::cpu::test
