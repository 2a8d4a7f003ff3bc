// amx_bf16 on processors without AMX, for tests: the same kernels with the same vectors and, as far as bfloat16 products ask for them, the same bits. Tile
// registers are in memory; the compiler makes two AVX2 instructions of each operation on a vector.
#pragma once

#include "cpu/isa/base.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

inline constexpr bool kFused = true, kHasElementary = true, kHasAmx = true;
using generic::AmxTiles, generic::interleave_halves, generic::multiply_bf16_pairs, generic::narrow_halves, generic::zip_halves;
using generic::lanes_above, generic::load_bytes, generic::load_shorts, generic::look_up, generic::multiply_add, generic::multiply_words, generic::reciprocal_guess, generic::store_fence,
    generic::stream_vector, generic::where_bytes, generic::widen_halves;

// The largest integer that is not above x, for |x| < 2^22. Other numbers stay NaN or become anything.
POLYHEAD_INLINE Vector<float> floor_of(Vector<float> x) {
  constexpr float kMagic = 0x1.8p23f;
  const Vector<float> nearest = (x + kMagic) - kMagic;
  return nearest > x ? nearest - 1.0F : nearest;
}
POLYHEAD_INLINE Vector<float> fraction(Vector<float> x) { return x - floor_of(x); }

// x has a normal result.
POLYHEAD_INLINE Vector<float> times_power_of_two(Vector<float> x, Vector<float> n) {
  const auto exponent = __builtin_convertvector(floor_of(n), Vector<std::int32_t>);
  const auto result = (Vector<float>)((Vector<std::int32_t>)x + (exponent << 23));
  return n < -126.0F ? Vector<float>{} : result + n * 0.0F;  // + 0 n: the sum of integers does not keep a NaN
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
