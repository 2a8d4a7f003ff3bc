// The vectors of one instruction set, for kernel sources only: GCC's and Clang's own (`vector_size`), whose operators act lane by lane. A
// kernel source is compiled once per row of cmake/isa.cmake; everything here is local to that object file.
#pragma once

#include <cstdint>
#include <type_traits>

#ifdef __AVX__
#include <immintrin.h>
#endif

#define POLYHEAD_INLINE inline __attribute__((always_inline))

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

template <class T>
inline constexpr int kLanes = POLYHEAD_VECTOR_BYTES / static_cast<int>(sizeof(T));
inline constexpr int kRegisters = POLYHEAD_VECTOR_REGISTERS;

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(POLYHEAD_VECTOR_BYTES)));
  typedef T unaligned __attribute__((vector_size(POLYHEAD_VECTOR_BYTES), aligned(alignof(T)), may_alias));
};
template <class T>
using Vector = typename VectorOf<T>::type;

// The integer of a lane's size: comparisons give vectors of it.
template <class T>
using Bits = std::conditional_t<sizeof(T) == 8, std::int64_t, std::int32_t>;

template <class T>
POLYHEAD_INLINE Vector<T> load_vector(const T* from) {
  return *reinterpret_cast<const typename VectorOf<T>::unaligned*>(from);
}
template <class T>
POLYHEAD_INLINE void store_vector(Vector<T> x, T* to) {
  *reinterpret_cast<typename VectorOf<T>::unaligned*>(to) = x;
}
template <class T>
POLYHEAD_INLINE Vector<T> broadcast(T x) {
  return x - Vector<T>{};  // the compiler drops a difference to zero, but not a sum: -0 + 0 is 0
}
// The second where they compare equal or with NaN, as the instruction does.
template <class V>
POLYHEAD_INLINE V larger(V a, V b) {
  return a > b ? a : b;
}

// To an address that is a multiple of the vector's size, past the caches: the line is not read first. Others see it after finish_streams().
template <class T>
POLYHEAD_INLINE void stream_vector(Vector<T> x, T* to) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)x);
#elif defined(__AVX__)
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), (__m256i)x);
#else
  store_vector<T>(x, to);
#endif
}
POLYHEAD_INLINE void finish_streams() {
#ifdef __AVX__
  _mm_sfence();
#endif
}

// a b + c in one rounding where there is an instruction for it. Where a select of lanes follows, GCC would make a masked sum of a plain one,
// which is not fused with the product, in some vectors of a tile and not in others.
template <class T>
POLYHEAD_INLINE Vector<T> multiply_add(Vector<T> a, T b, Vector<T> c) {
#ifdef __AVX512F__
  if constexpr (sizeof(T) == 8) {
    return (Vector<T>)_mm512_fmadd_pd((__m512d)a, _mm512_set1_pd(b), (__m512d)c);
  } else {
    return (Vector<T>)_mm512_fmadd_ps((__m512)a, _mm512_set1_ps(b), (__m512)c);
  }
#else
  return a * b + c;
#endif
}

// x / divisor by its reciprocal and one step of Newton: as exact as a division, which takes 16 cycles a vector.
template <class T>
POLYHEAD_INLINE Vector<T> divide(Vector<T> x, T divisor, [[maybe_unused]] T reciprocal) {
#if defined(__FMA__) || defined(__aarch64__)
  const Vector<T> guess = x * reciprocal, rest = x - guess * divisor;
  return rest == rest ? guess + rest * reciprocal : guess;  // infinity has no rest
#else
  return x / divisor;
#endif
}

// The lanes of x whose byte's truth is `wanted`, `other` in the rest.
template <class T>
POLYHEAD_INLINE Vector<T> where_bytes(const std::uint8_t* bytes, bool wanted, Vector<T> x, T other) {
#ifdef __AVX512F__
  if constexpr (sizeof(T) == 4) {
    const __m128i lanes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
    const __mmask16 taken = wanted ? _mm_test_epi8_mask(lanes, lanes) : _mm_testn_epi8_mask(lanes, lanes);
    return (Vector<T>)_mm512_mask_blend_ps(taken, _mm512_set1_ps(other), (__m512)x);
  }
#endif
  Vector<Bits<T>> lanes;
#pragma GCC unroll 16
  for (int i = 0; i < kLanes<T>; ++i) lanes[i] = bytes[i];
  return (lanes != 0) == (wanted ? Vector<Bits<T>>{} - 1 : Vector<Bits<T>>{}) ? x : broadcast(other);
}

template <class T>
POLYHEAD_INLINE Vector<Bits<T>> lane_numbers() {
  Vector<Bits<T>> numbers{};
#pragma GCC unroll 16
  for (int i = 0; i < kLanes<T>; ++i) numbers[i] = i;
  return numbers;
}

// x with its halves, its quarters, ... exchanged: lane i of the result is lane i ^ kDistance of x.
template <class T, int kDistance>
POLYHEAD_INLINE Vector<T> exchange(Vector<T> x) {
  Vector<Bits<T>> order;
#pragma GCC unroll 16
  for (int i = 0; i < kLanes<T>; ++i) order[i] = i ^ kDistance;
#ifdef __clang__
  Vector<T> result;
#pragma GCC unroll 16
  for (int i = 0; i < kLanes<T>; ++i) result[i] = x[order[i]];
  return result;
#else
  return __builtin_shuffle(x, order);
#endif
}

template <class T, int kDistance = kLanes<T> / 2>
POLYHEAD_INLINE T largest_lane(Vector<T> x) {
  if constexpr (kDistance == 0) {
    return x[0];
  } else {
    return largest_lane<T, kDistance / 2>(larger(x, exchange<T, kDistance>(x)));
  }
}
// One bit per lane that is larger than the bound; at least one bit if there is any.
template <class T>
POLYHEAD_INLINE unsigned lanes_above(Vector<T> x, T bound) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 8) {
    return _mm512_cmp_pd_mask((__m512d)x, _mm512_set1_pd(bound), _CMP_GT_OQ);
  } else {
    return _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(bound), _CMP_GT_OQ);
  }
#elif defined(__AVX__)
  if constexpr (sizeof(T) == 8) {
    return static_cast<unsigned>(_mm256_movemask_pd((__m256d)(x > bound)));
  } else {
    return static_cast<unsigned>(_mm256_movemask_ps((__m256)(x > bound)));
  }
#else
  return largest_lane<T>(x) > bound ? 1 : 0;
#endif
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
