// Emulates amx_bf16 on processors without AMX, for tests. The kernels are the same, but tile registers are arrays in memory and plain code multiplies them. The
// vector operations are those of AVX512-BF16 if the set is compiled for it (cmake/isa.cmake); else the compiler chooses the instructions.
#pragma once

#ifdef __AVX512BF16__
#include "cpu/isa/avx512_bf16_pairs.h"
#else
#include "cpu/isa/base.h"
#endif

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

inline constexpr bool kHasAmx = true;
using generic::AmxTiles;

#ifndef __AVX512BF16__
inline constexpr bool kFused = false, kHasElementary = false;
using generic::interleave_halves, generic::lanes_above, generic::load_bytes, generic::load_shorts, generic::look_up, generic::multiply_add, generic::multiply_bf16_pairs, generic::multiply_words, generic::narrow_halves,
    generic::reciprocal_guess, generic::store_fence, generic::stream_vector, generic::where_bytes, generic::widen_halves, generic::zip_halves;

// Returns the largest integer that is not above x, for |x| < 2^22. The result is NaN for NaN, and unspecified for other x.
POLYHEAD_INLINE Vector<float> floor_of(Vector<float> x) {
  constexpr float kMagic = 0x1.8p23f;
  const Vector<float> nearest = (x + kMagic) - kMagic;
  return nearest > x ? nearest - 1.0F : nearest;
}
POLYHEAD_INLINE Vector<float> fraction(Vector<float> x) { return x - floor_of(x); }

// Returns 2^floor(n) x, or 0 if n < least. Requires n < least or a result that is a normal number.
POLYHEAD_INLINE Vector<float> times_power_of_two(Vector<float> x, Vector<float> n, float least = -126) {
  const auto exponent = __builtin_convertvector(floor_of(n), Vector<std::int32_t>);
  const auto result = (Vector<float>)((Vector<std::int32_t>)x + (exponent << 23));
  return n < least ? Vector<float>{} : result + n * 0.0F;  // adding 0 n makes the result NaN if n is NaN
}
#endif

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
