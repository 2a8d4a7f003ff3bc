#include "cpu/scratch_memory.h"

#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include "core/sanitizers.h"

namespace polyhead::cpu {
namespace {

using Block = ScratchMemory::Block;

// A kept block would keep an unlucky place too: 10 % of 64 queries and keys, where its stores and the inputs' loads are a page apart.
constexpr std::align_val_t kPage{4096};
constexpr std::size_t kMostKept = 256 << 10;  // bytes of a block: larger ones belong to calls that take a millisecond
constexpr bool kKeep = !kAddressSanitizer;    // which finds out whoever reads on in a block that was given back

// Without a destructor: memory may be given back when the thread's objects are gone already.
thread_local constinit std::array<Block, 3> kept{};
thread_local constinit bool ended = false;

struct End {
  ~End() {
    ended = true;
    for (Block& block : kept) ::operator delete(std::exchange(block, {}).memory, kPage);
  }
};

}  // namespace

ScratchMemory::ScratchMemory(std::int64_t bytes) : block_{nullptr, static_cast<std::size_t>(bytes)} {
  if (bytes == 0) return;
  Block* best = nullptr;
  for (Block& block : kept) {
    if (block.bytes >= block_.bytes && (best == nullptr || block.bytes < best->bytes)) best = &block;
  }
  block_ = best != nullptr ? std::exchange(*best, {}) : Block{::operator new(block_.bytes, kPage), block_.bytes};
}

ScratchMemory::~ScratchMemory() {
  if (block_.memory == nullptr) return;
  if (kKeep && block_.bytes <= kMostKept && !ended) {
    thread_local End end;
    (void)end;
    // The smallest makes room: memory that serves more calls stays.
    Block& least = *std::min_element(kept.begin(), kept.end(), [](const Block& a, const Block& b) { return a.bytes < b.bytes; });
    if (least.bytes < block_.bytes) std::swap(least, block_);
  }
  ::operator delete(block_.memory, kPage);
}

}  // namespace polyhead::cpu
