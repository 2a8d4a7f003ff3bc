// The instruction set avx512: 32 registers of 16 float32, and masks.
#pragma once

#include <immintrin.h>

#include "cpu/isa/base.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

inline constexpr bool kFused = true, kHasElementary = true;
#ifndef POLYHEAD_BASE_ISA  // a set whose base is avx512 defines these names in its own header
inline constexpr bool kHasAmx = false;
using generic::AmxTiles, generic::interleave_halves, generic::multiply_bf16_pairs, generic::narrow_halves, generic::zip_halves;
#endif

template <class T>
POLYHEAD_INLINE Vector<T> multiply_add(Vector<T> a, Vector<T> b, Vector<T> c) {
  if constexpr (sizeof(T) == 8) {
    return (Vector<T>)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
  } else {
    return (Vector<T>)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
  }
}

template <class T>
POLYHEAD_INLINE void stream_vector(Vector<T> x, T* to) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)x);
}
POLYHEAD_INLINE void store_fence() { _mm_sfence(); }

template <class T>
POLYHEAD_INLINE Vector<T> where_bytes(const std::uint8_t* bytes, bool wanted, Vector<T> x, T other) {
  if constexpr (sizeof(T) == 8) {
    return generic::where_bytes<T>(bytes, wanted, x, other);
  } else {
    const __m128i lanes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
    const __mmask16 taken = wanted ? _mm_test_epi8_mask(lanes, lanes) : _mm_testn_epi8_mask(lanes, lanes);
    return (Vector<T>)_mm512_mask_blend_ps(taken, _mm512_set1_ps(other), (__m512)x);
  }
}

POLYHEAD_INLINE Vector<std::int32_t> load_shorts(const std::uint16_t* from) {
  return (Vector<std::int32_t>)_mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
POLYHEAD_INLINE Vector<std::int32_t> load_bytes(const std::int8_t* from) {
  return (Vector<std::int32_t>)_mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

POLYHEAD_INLINE Vector<float> widen_halves(Vector<std::int32_t> halves) {
  return (Vector<float>)_mm512_maskz_cvtph_ps(0xffff, _mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)halves));
}

template <class T>
POLYHEAD_INLINE unsigned lanes_above(Vector<T> x, T bound) {
  if constexpr (sizeof(T) == 8) {
    return _mm512_cmp_pd_mask((__m512d)x, _mm512_set1_pd(bound), _CMP_GT_OQ);
  } else {
    return _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(bound), _CMP_GT_OQ);
  }
}

// Some of the following functions pass a mask of all lanes, because without a mask GCC 12 warns of an undefined operand in its own headers.
POLYHEAD_INLINE Vector<std::int64_t> multiply_words(Vector<std::int64_t> a, Vector<std::int64_t> b) {
  return (Vector<std::int64_t>)_mm512_maskz_mul_epu32(0xff, (__m512i)a, (__m512i)b);
}

POLYHEAD_INLINE Vector<float> times_power_of_two(Vector<float> x, Vector<float> n, float least = -126) {
  const __mmask16 normal = _mm512_cmp_ps_mask((__m512)n, _mm512_set1_ps(least), _CMP_NLT_UQ);
  return (Vector<float>)_mm512_maskz_scalef_ps(normal, (__m512)x, (__m512)n);
}
POLYHEAD_INLINE Vector<float> fraction(Vector<float> x) {
  return (Vector<float>)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}
template <class T>
POLYHEAD_INLINE Vector<T> reciprocal_guess(Vector<T> x) {
  if constexpr (sizeof(T) == 8) {
    return (Vector<T>)_mm512_maskz_rcp14_pd(0xff, (__m512d)x);
  } else {
    return (Vector<T>)_mm512_maskz_rcp14_ps(0xffff, (__m512)x);
  }
}
POLYHEAD_INLINE Vector<float> look_up(const float (&table)[16], Vector<std::int32_t> index) {
  return (Vector<float>)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)index, _mm512_load_ps(table));
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
