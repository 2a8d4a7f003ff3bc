// Computes 2^x where the result is rounded to bfloat16 afterwards, so that a relative error of 3e-6 suffices. Only kernel sources (*_kernel.cc) include this
// file.
#pragma once

#include "cpu/vector.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// Replaces x by 2^x, for x < 128, with a relative error of 3e-6, which is at most a hundredth of the rounding error of bfloat16. The result is 0 for -infinity
// and where it would be below 2^-126, and NaN for NaN.
template <int kCount>
POLYHEAD_INLINE void power_for_bf16(Vector<float> (&x)[kCount]) {
  constexpr float c[] = {1, 0x1.62d6d0p-1f, 0x1.ee2374p-3f, 0x1.abfe7ep-5f, 0x1.b7ea5cp-7f};  // minimax polynomial for 2^f, 0 <= f < 1
  Vector<float> f[kCount], power[kCount];
#pragma GCC unroll 4
  for (int j = 0; j < kCount; ++j) f[j] = fraction(x[j]), power[j] = broadcast(c[4]);
#pragma GCC unroll 4
  for (int i = 3; i >= 0; --i) {
#pragma GCC unroll 4
    for (int j = 0; j < kCount; ++j) power[j] = multiply_add<float>(power[j], f[j], broadcast(c[i]));
  }
#pragma GCC unroll 4
  for (int j = 0; j < kCount; ++j) x[j] = times_power_of_two(power[j], x[j]);
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
