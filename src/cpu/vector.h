// Vectors of one instruction set, for kernel sources only. A kernel source is compiled once per row of cmake/isa.cmake, which names the
// header with the row's instructions (src/cpu/isa/); no other file has intrinsics or asks for an instruction set.
#pragma once

#include POLYHEAD_ISA_HEADER

namespace polyhead::cpu::POLYHEAD_ISA {

// The kernel functions of one struct in cpu/*/kernels.h. The source that has them defines this for the struct, and select.cc collects them.
template <class Kernels>
Kernels kernels();

namespace {

// Vector `j` of a row; one prefetch for two vectors of 16 bytes.
template <class T>
POLYHEAD_INLINE void prefetch_vector(const T* row, int j) {
  if (j * POLYHEAD_VECTOR_BYTES % 32 == 0) __builtin_prefetch(row + j * kLanes<T>);
}

// x / divisor by its reciprocal and one step of Newton where products are fused: as exact as a division, which takes 16 cycles a vector.
template <class T>
POLYHEAD_INLINE Vector<T> divide(Vector<T> x, T divisor, [[maybe_unused]] T reciprocal) {
  if constexpr (kFused) {
    const Vector<T> guess = x * reciprocal, rest = x - guess * divisor;
    return rest == rest ? guess + rest * reciprocal : guess;  // infinity has no rest
  } else {
    return x / divisor;
  }
}

template <class T, int kDistance = kLanes<T> / 2>
POLYHEAD_INLINE T largest_lane(Vector<T> x) {
  if constexpr (kDistance == 0) {
    return x[0];
  } else {
    return largest_lane<T, kDistance / 2>(larger(x, exchange<T, kDistance>(x)));
  }
}

// As a tree: the same order on every call.
template <class T, int kDistance = kLanes<T> / 2>
POLYHEAD_INLINE T sum_of_lanes(Vector<T> x) {
  if constexpr (kDistance == 0) {
    return x[0];
  } else {
    return sum_of_lanes<T, kDistance / 2>(x + exchange<T, kDistance>(x));
  }
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
