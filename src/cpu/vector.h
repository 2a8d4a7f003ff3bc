// The vector operations of one instruction set. Only kernel sources (*_kernel.cc) include this file. Each row of cmake/isa.cmake names an instruction set and a
// header in src/cpu/isa/ that defines the operations; no other file uses intrinsics. A kernel source is compiled once for each row. It exports constant tables
// of its functions (cpu/*/kernels.h) and no function, because select.cc reads the tables of all sets on every machine and must not call code of a set that the
// processor lacks.
#pragma once

#include POLYHEAD_ISA_HEADER

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// Prefetches vector `j` of a row. Of two vectors of 16 bytes only one is prefetched, because they share a cache line.
template <class T>
POLYHEAD_INLINE void prefetch_vector(const T* row, int j) {
  if (j * POLYHEAD_VECTOR_BYTES % 32 == 0) __builtin_prefetch(row + j * kLanes<T>);
}

// multiply_add() for single numbers.
template <class T>
POLYHEAD_INLINE T multiply_add(T a, T b, T c) {
  if constexpr (!kFused) {
    return a * b + c;
  } else if constexpr (sizeof(T) == 8) {
    return __builtin_fma(a, b, c);
  } else {
    return __builtin_fmaf(a, b, c);
  }
}

// Returns x / divisor. With a fused multiply-add it is computed as x times the reciprocal and one step of Newton's method, which is as exact as a division and
// avoids the 16 cycles that a division of a vector takes.
template <class T>
POLYHEAD_INLINE Vector<T> divide(Vector<T> x, T divisor, [[maybe_unused]] T reciprocal) {
  if constexpr (kFused) {
    const Vector<T> guess = x * reciprocal, rest = multiply_add<T>(-guess, broadcast(divisor), x);
    return rest == rest ? multiply_add<T>(rest, broadcast(reciprocal), guess) : guess;  // rest is NaN if x is infinite; the result is then `guess`
  } else {
    // Adding 0 turns -0 into 0, as the fused code above does. A sum x of zeros may be 0 or -0, depending on the number of zeros.
    return x / divisor + T{0};
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

// Returns the sum of the lanes. The lanes are added as a binary tree, always in the same order.
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
