// Vectors of one instruction set, for kernel sources only. A kernel source is compiled once per row of cmake/isa.cmake. The row names a
// header in src/cpu/isa/ with its instructions; no other file uses intrinsics. A source exports constant tables of its functions (cpu/*/kernels.h)
// and no function: select.cc reads the tables of all sets on every machine, and may not call code of a set that the processor lacks.
#pragma once

#include POLYHEAD_ISA_HEADER

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// Prefetches vector `j` of a row; two vectors of 16 bytes share a prefetch.
template <class T>
POLYHEAD_INLINE void prefetch_vector(const T* row, int j) {
  if (j * POLYHEAD_VECTOR_BYTES % 32 == 0) __builtin_prefetch(row + j * kLanes<T>);
}

// x / divisor. With FMA: x times the reciprocal and one Newton step, which is as exact as a division and avoids its 16 cycles per vector.
template <class T>
POLYHEAD_INLINE Vector<T> divide(Vector<T> x, T divisor, [[maybe_unused]] T reciprocal) {
  if constexpr (kFused) {
    const Vector<T> guess = x * reciprocal, rest = x - guess * divisor;
    return rest == rest ? guess + rest * reciprocal : guess;  // for an infinite x the rest is NaN
  } else {
    return x / divisor + T{0};  // -0 becomes 0, as with FMA: the sign of 0 may depend on how many zeros were added
  }
}

template <class T, int kDistance = kLanes<T> / 2>
POLYHEAD_INLINE T largest_lane(Vector<T> x) {
  if constexpr (kDistance == 0) {
    return x[0];
  } else {
    return largest_lane<T, kDistance / 2>(larger(x, swap_lanes<T, kDistance>(x)));
  }
}

// Adds the lanes as a tree, always in the same order.
template <class T, int kDistance = kLanes<T> / 2>
POLYHEAD_INLINE T sum_of_lanes(Vector<T> x) {
  if constexpr (kDistance == 0) {
    return x[0];
  } else {
    return sum_of_lanes<T, kDistance / 2>(x + swap_lanes<T, kDistance>(x));
  }
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
