// Converts rows of any dtype and stride to contiguous rows of the compute type T, and back. T is double if the tensor is float64, else float. For kernel
// sources only.
#pragma once

#include "cpu/vector.h"
#include "polyhead/dtype.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// The dtype that equals the compute type T, so that its elements need no conversion.
template <class T>
inline constexpr DType kOwnStorage = sizeof(T) == 8 ? DType::f64 : DType::f32;

// Calls f(data), with `data` converted to a pointer to the C++ type of `dtype`. T is the compute type of `dtype`.
template <class T, class F>
POLYHEAD_INLINE auto with_storage(DType dtype, const void* data, const F& f) {
  if constexpr (std::is_same_v<T, double>) {
    return f(static_cast<const double*>(data));
  } else {
    switch (dtype) {
      case DType::bf16: return f(static_cast<const bf16*>(data));
      case DType::f16: return f(static_cast<const f16*>(data));
      default: return f(static_cast<const float*>(data));
    }
  }
}

// Does the work of with_storage() for k and v, whose dtype may also be int8.
template <class T, class F>
POLYHEAD_INLINE auto with_key_storage(DType dtype, const void* data, const F& f) {
  if constexpr (std::is_same_v<T, float>) {
    if (dtype == DType::i8) return f(static_cast<const std::int8_t*>(data));
  }
  return with_storage<T>(dtype, data, f);
}

POLYHEAD_INLINE float widen(float x) { return x; }
POLYHEAD_INLINE double widen(double x) { return x; }
POLYHEAD_INLINE float widen(std::int8_t x) { return x; }
POLYHEAD_INLINE float widen(bf16 x) { return __builtin_bit_cast(float, static_cast<std::uint32_t>(x.bits) << 16); }
// Converts float16 to float32. A multiplication by a power of two corrects the exponent, for subnormal numbers too. Infinity and NaN keep an exponent of all ones.
POLYHEAD_INLINE float widen(f16 x) {
  const std::uint32_t magnitude = (x.bits & 0x7fffu) << 13, sign = (x.bits & 0x8000u) << 16;
  const std::uint32_t finite = __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(float, magnitude) * 0x1p112f);
  return __builtin_bit_cast(float, ((x.bits & 0x7c00u) == 0x7c00u ? magnitude | 0x7f800000u : finite) | sign);
}

// Reads elements of a narrow type as vectors of float32. load() widens elements that are adjacent in memory; of_word<i>() widens element i of the 32-bit word
// in each lane.
template <class Storage>
struct Narrow;

template <>
struct Narrow<bf16> {
  POLYHEAD_INLINE static Vector<float> load(const bf16* from) {
    return (Vector<float>)(load_shorts(&from->bits) << 16);
  }
  template <int i>
  POLYHEAD_INLINE static Vector<float> of_word(Vector<std::int32_t> word) {
    return (Vector<float>)(i == 0 ? word << 16 : word & ~0xffff);
  }
};

template <>
struct Narrow<f16> {
  POLYHEAD_INLINE static Vector<float> load(const f16* from) { return widen_halves(load_shorts(&from->bits)); }
  template <int i>
  POLYHEAD_INLINE static Vector<float> of_word(Vector<std::int32_t> word) {
    return widen_halves(i == 0 ? word : word >> 16);
  }
};

template <>
struct Narrow<std::int8_t> {
  POLYHEAD_INLINE static Vector<float> load(const std::int8_t* from) { return __builtin_convertvector(load_bytes(from), Vector<float>); }
  template <int i>
  POLYHEAD_INLINE static Vector<float> of_word(Vector<std::int32_t> word) {
    return __builtin_convertvector((word << (24 - 8 * i)) >> 24, Vector<float>);
  }
};

// Loads a vector of T from adjacent elements of any storage type.
template <class T, class Storage>
POLYHEAD_INLINE Vector<T> load_wide(const Storage* from) {
  if constexpr (std::is_same_v<T, Storage>) {
    return load_vector(from);
  } else {
    return Narrow<Storage>::load(from);
  }
}

POLYHEAD_INLINE void narrow(float x, float* to) { *to = x; }
POLYHEAD_INLINE void narrow(double x, double* to) { *to = x; }
POLYHEAD_INLINE void narrow(float x, f16* to) { *to = to_f16(x); }
POLYHEAD_INLINE void narrow(float x, bf16* to) {  // rounds to nearest, ties to even; NaN stays NaN
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, x);
  const std::uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16, nan = bits >> 16 | 0x40u;
  to->bits = static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

// Sets to[i] to factor * from[i * stride].
template <class T, class Storage>
POLYHEAD_INLINE void widen_row(const Storage* from, std::int64_t stride, std::int64_t count, T factor, T* to) {
  if (stride == 1) {
    std::int64_t i = 0;
    if constexpr (!std::is_same_v<T, Storage>) {
      for (; i + kLanes<T> <= count; i += kLanes<T>) store_vector<T>(Narrow<Storage>::load(from + i) * factor, to + i);
    }
    for (; i < count; ++i) to[i] = factor * widen(from[i]);
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[i] = factor * widen(from[i * stride]);
  }
}

// Sets to[i * stride] to factor * from[i], rounded to Storage.
template <class T, class Storage>
POLYHEAD_INLINE void narrow_row(const T* from, std::int64_t count, T factor, Storage* to, std::int64_t stride) {
  if (stride == 1) {
    for (std::int64_t i = 0; i < count; ++i) narrow(from[i] * factor, to + i);
  } else {
    for (std::int64_t i = 0; i < count; ++i) narrow(from[i] * factor, to + i * stride);
  }
}

template <class T>
POLYHEAD_INLINE void narrow_row(DType dtype, const T* from, std::int64_t count, T factor, void* data, std::int64_t offset, std::int64_t stride) {
  with_storage<T>(dtype, data, [&](auto* to) {
    using Storage = std::remove_const_t<std::remove_pointer_t<decltype(to)>>;
    narrow_row(from, count, factor, const_cast<Storage*>(to) + offset, stride);
  });
}

// Adds from[i] to to[i * stride], for i in [low, high).
template <class T>
POLYHEAD_INLINE void add_to_row(const T* from, std::int64_t low, std::int64_t high, std::int64_t stride, T* to) {
  if (stride == 1) {
    for (std::int64_t i = low; i < high; ++i) to[i] += from[i];
  } else if (stride == 0) {
    // All keys of the row share one element of the bias' gradient. The sum is computed in double, because the d_score of a row nearly cancel: their exact sum
    // is 0.
    double sum = 0;
    for (std::int64_t i = low; i < high; ++i) sum += static_cast<double>(from[i]);
    *to += static_cast<T>(sum);
  } else {
    for (std::int64_t i = low; i < high; ++i) to[i * stride] += from[i];
  }
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
