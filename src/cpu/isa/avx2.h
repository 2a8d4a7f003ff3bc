// The instruction set avx2: AVX2 with FMA, 16 registers of 8 float32.
#pragma once

#include <immintrin.h>

#include "cpu/isa/base.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

inline constexpr bool kFused = true, kHasElementary = false, kHasAmx = false;
using generic::AmxTiles, generic::interleave_halves, generic::multiply_bf16_pairs, generic::narrow_halves, generic::zip_halves;
using generic::fraction, generic::look_up, generic::reciprocal_guess, generic::times_power_of_two, generic::where_bytes;

template <class T>
POLYHEAD_INLINE Vector<T> multiply_add(Vector<T> a, Vector<T> b, Vector<T> c) {
  if constexpr (sizeof(T) == 8) {
    return (Vector<T>)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
  } else {
    return (Vector<T>)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
  }
}

template <class T>
POLYHEAD_INLINE void stream_vector(Vector<T> x, T* to) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), (__m256i)x);
}
POLYHEAD_INLINE void store_fence() { _mm_sfence(); }

POLYHEAD_INLINE Vector<std::int32_t> load_shorts(const std::uint16_t* from) {
  return (Vector<std::int32_t>)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
POLYHEAD_INLINE Vector<std::int32_t> load_bytes(const std::int8_t* from) {
  return (Vector<std::int32_t>)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
}

POLYHEAD_INLINE Vector<float> widen_halves(Vector<std::int32_t> halves) {
  // Clear the upper halves, because the instruction that packs 32 to 16 bits would saturate larger values.
  const __m256i x = (__m256i)(halves & 0xffff);
  return (Vector<float>)_mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)));
}

template <class T>
POLYHEAD_INLINE unsigned lanes_above(Vector<T> x, T bound) {
  if constexpr (sizeof(T) == 8) {
    return static_cast<unsigned>(_mm256_movemask_pd((__m256d)(x > bound)));
  } else {
    return static_cast<unsigned>(_mm256_movemask_ps((__m256)(x > bound)));
  }
}

POLYHEAD_INLINE Vector<std::int64_t> multiply_words(Vector<std::int64_t> a, Vector<std::int64_t> b) {
  return (Vector<std::int64_t>)_mm256_mul_epu32((__m256i)a, (__m256i)b);
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
