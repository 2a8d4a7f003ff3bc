// Transposes a square of lanes x lanes in registers. For kernel sources only.
#pragma once

#include "cpu/vector.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// Lane j of x[i] becomes lane i of x[j]. log2(kLanes) perfect shuffles transpose a square.
template <class T>
POLYHEAD_INLINE void transpose(Vector<T> (&x)[kLanes<T>]) {
  constexpr int kCount = kLanes<T>;
#pragma GCC unroll 4
  for (int step = 1; step < kCount; step *= 2) {
    Vector<T> y[kCount];
#pragma GCC unroll 8
    for (int i = 0; i < kCount / 2; ++i) {
      y[2 * i] = interleave<T, false>(x[i], x[i + kCount / 2]);
      y[2 * i + 1] = interleave<T, true>(x[i], x[i + kCount / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) x[i] = y[i];
  }
}

// to[i * stride + j] = factor rows[j][offset + i] for i and j below kLanes.
template <class T>
POLYHEAD_INLINE void transpose(const T* const* rows, std::int64_t offset, T factor, T* to, std::int64_t stride) {
  constexpr int kCount = kLanes<T>;
  Vector<T> x[kCount];
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i) x[i] = load_vector(rows[i] + offset) * factor;
  transpose<T>(x);
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i) store_vector<T>(x[i], to + i * stride);
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
