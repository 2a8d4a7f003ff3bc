// The operations of AVX512-BF16 on bfloat16 pairs.
#pragma once

#include "cpu/isa/avx512.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

POLYHEAD_INLINE Vector<float> multiply_bf16_pairs(Vector<float> sum, Vector<std::int32_t> a, Vector<std::int32_t> b) {
  return (Vector<float>)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}
POLYHEAD_INLINE Vector<std::int32_t> narrow_halves(Vector<float> low, Vector<float> high) {
  return (Vector<std::int32_t>)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
}
POLYHEAD_INLINE Vector<std::int32_t> zip_halves(Vector<std::int32_t> halves) {
  return (Vector<std::int32_t>)_mm512_maskz_permutexvar_epi16(~__mmask32{}, (__m512i)(lane_numbers<float>() * 0x10001 + 0x100000), (__m512i)halves);
}

template <bool kUpper>
POLYHEAD_INLINE Vector<std::int32_t> interleave_halves(Vector<std::int32_t> a, Vector<std::int32_t> b) {
  return (Vector<std::int32_t>)(kUpper ? _mm512_maskz_unpackhi_epi16(~__mmask32{}, (__m512i)a, (__m512i)b) : _mm512_maskz_unpacklo_epi16(~__mmask32{}, (__m512i)a, (__m512i)b));
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
