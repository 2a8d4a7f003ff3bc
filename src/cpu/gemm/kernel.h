#pragma once

#include <cstdint>

namespace polyhead::cpu {

inline constexpr int kVectorBytes = 16;  // SSE2 and NEON, which every x86-64 and AArch64 machine has

// 6 x 2 vectors of sums, 2 of B, 1 of A and 1 for the product fill the 16 registers of SSE2. A wider instruction set has another shape.
inline constexpr int kPanelRows = 6;
template <class A>
inline constexpr int kPanelColumns = 2 * kVectorBytes / static_cast<int>(sizeof(A));

// tile[i * stride + j] += sum_k a[k,i] b[k,j] over packed panels a [depth,kPanelRows] and b [depth,kPanelColumns]. The sum runs over k in
// order and starts from 0, whatever the position in the matrix: a result depends on its own row and column only.
template <class A>
inline void multiply_panels(std::int64_t depth, const A* a, const A* b, A* tile, std::int64_t stride) {
  typedef A Vector __attribute__((vector_size(kVectorBytes), aligned(alignof(A)), may_alias));
  constexpr int kColumns = kPanelColumns<A>, kLanes = kVectorBytes / static_cast<int>(sizeof(A)), kVectors = kColumns / kLanes;
  Vector sums[kPanelRows][kVectors] = {};
  for (std::int64_t k = 0; k < depth; ++k, a += kPanelRows, b += kColumns) {
    Vector row[kVectors];
    for (int j = 0; j < kVectors; ++j) row[j] = *reinterpret_cast<const Vector*>(b + j * kLanes);
    for (int i = 0; i < kPanelRows; ++i) {
      for (int j = 0; j < kVectors; ++j) sums[i][j] += a[i] * row[j];
    }
  }
  for (int i = 0; i < kPanelRows; ++i) {
    for (int j = 0; j < kVectors; ++j) *reinterpret_cast<Vector*>(tile + i * stride + j * kLanes) += sums[i][j];
  }
}

}  // namespace polyhead::cpu
