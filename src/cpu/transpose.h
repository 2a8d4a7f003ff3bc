// Transposes a square matrix of kLanes x kLanes elements in registers. Only kernel sources (*_kernel.cc) include this file.
#pragma once

#include "cpu/vector.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// Transposes x: lane j of x[i] becomes lane i of x[j]. Blocks of lanes are transposed first and then the lanes of each block, which takes log2(kLanes) shuffles for
// each vector.
template <class T>
POLYHEAD_INLINE void transpose(Vector<T> (&x)[kLanes<T>]) {
  constexpr int kCount = kLanes<T>, kBlock = kBlockLanes<T>;
  Vector<T> y[kCount];
  const auto take_over = [&]() __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) x[i] = y[i];
  };
#pragma GCC unroll 2
  for (int blocks = kCount / kBlock; blocks > 1; blocks /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < kCount / 2; ++i) {
      const int even = i / kBlock * 2 * kBlock + i % kBlock;
      y[i] = unzip_blocks<T, false>(x[even], x[even + kBlock]);
      y[i + kCount / 2] = unzip_blocks<T, true>(x[even], x[even + kBlock]);
    }
    take_over();
  }
#pragma GCC unroll 2
  for (int lanes = kBlock; lanes > 1; lanes /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < kCount / 2; ++i) {
      const int first = i / (kBlock / 2) * kBlock + i % (kBlock / 2), to = i / (kBlock / 2) * kBlock + i % (kBlock / 2) * 2;
      y[to] = zip_lanes<T, false>(x[first], x[first + kBlock / 2]);
      y[to + 1] = zip_lanes<T, true>(x[first], x[first + kBlock / 2]);
    }
    take_over();
  }
}

// Sets to[i * stride + j] to rows[j][offset + i] for all i and j below kLanes.
template <class T>
POLYHEAD_INLINE void transpose(const T* const* rows, std::int64_t offset, T* to, std::int64_t stride) {
  constexpr int kCount = kLanes<T>;
  Vector<T> x[kCount];
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i) x[i] = load_vector(rows[i] + offset);
  transpose<T>(x);
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i) store_vector<T>(x[i], to + i * stride);
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
