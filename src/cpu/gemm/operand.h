// Offsets into the matrices, and the shape of a tile. For kernel sources only.
#pragma once

#include "cpu/gemm/task.h"
#include "cpu/storage.h"
#include "cpu/tile.h"
#include "cpu/transpose.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// 12 rows x 2 vectors in 32 registers, 6 x 2 in 16. Attention's 6 x 4 would read twice as many lines of b from the second-level cache.
inline constexpr int kGemmRows = kRegisters >= 32 ? 12 : 6, kGemmVectors = 2;
static_assert(kGemmRowStep % kGemmRows == 0);
template <class T>
inline constexpr int kPanelColumns = kGemmVectors * kLanes<T>;

POLYHEAD_INLINE std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

POLYHEAD_INLINE std::int64_t offset_of(const GemmAxis& side, std::int64_t index) {
  return side.offsets == nullptr ? index * side.stride : side.offsets[index];
}
// Whether `count` indices from `first` are adjacent in memory.
POLYHEAD_INLINE bool adjacent(const GemmAxis& side, std::int64_t first, std::int64_t count) {
  return count <= 1 || (side.stride == 1 && (side.offsets == nullptr || first % side.run + count <= side.run));
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
