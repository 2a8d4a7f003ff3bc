// The shape of a tile, and the addresses of matrix elements. Only kernel sources (*_kernel.cc) include this file.
#pragma once

#include "cpu/gemm/task.h"
#include "cpu/storage.h"
#include "cpu/tile.h"
#include "cpu/transpose.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// A tile has 12 rows x 2 vectors of sums if there are 32 registers, else 6 x 2. The 6 x 4 tiles of the attention kernels would load twice as many cache lines of b
// from the second-level cache for the same number of products.
inline constexpr int kGemmRows = kRegisters >= 32 ? 12 : 6, kGemmVectors = 2;
static_assert(kGemmRowStep % kGemmRows == 0);
template <class T>
inline constexpr int kPanelColumns = kGemmVectors * kLanes<T>;

POLYHEAD_INLINE std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

POLYHEAD_INLINE std::int64_t offset_of(const GemmAxis& side, std::int64_t index) {
  return side.offsets == nullptr ? index * side.stride : side.offsets[index];
}
// Returns whether `count` elements from index `first` on are adjacent in memory.
POLYHEAD_INLINE bool adjacent(const GemmAxis& side, std::int64_t first, std::int64_t count) {
  return count <= 1 || (side.stride == 1 && (side.offsets == nullptr || first % side.run + count <= side.run));
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
