// Calls a template with the C++ type of a dtype that is known only at run time, and converts elements between their storage type and the type of arithmetic.
#pragma once

#include "core/text.h"
#include "polyhead/dtype.h"

namespace polyhead {

template <class T>
struct Type {
  using type = T;
};

// The type in which numbers of a storage type are computed: float64 for float64, else float32.
template <class Storage>
using Accumulator = std::conditional_t<std::is_same_v<Storage, double>, double, float>;

template <class T>
  requires(std::is_arithmetic_v<T>)
inline T load(T x) { return x; }
inline float load(bf16 x) { return to_float(x); }
inline float load(f16 x) { return to_float(x); }

// Rounds float64 to float32 as the first of two steps to a 16-bit type. An x that is no float32 number becomes the neighbouring float32 number whose last bit
// is set (round to odd), so that the second rounding cannot mistake x for a tie (Boldo and Melquiond 2008, "Emulation of FMA and correctly rounded sums").
[[gnu::visibility("default")]] float to_float_for_narrowing(double x);  // exported: the libraries of other components call it
inline float to_float_for_narrowing(float x) { return x; }

template <class T, class A>
inline T store(A x) {
  if constexpr (std::is_same_v<T, bf16>) {
    return to_bf16(to_float_for_narrowing(x));
  } else if constexpr (std::is_same_v<T, f16>) {
    return to_f16(to_float_for_narrowing(x));
  } else {
    return static_cast<T>(x);
  }
}

[[noreturn, gnu::visibility("default")]] void fail_not_floating(DType dtype);  // exported: the libraries of other components call it

// Calls f(Type<T>{}) for the storage type of a floating dtype.
template <class F>
decltype(auto) dispatch_floating(DType dtype, const F& f) {
  switch (dtype) {
    case DType::f32: return f(Type<float>{});
    case DType::f64: return f(Type<double>{});
    case DType::bf16: return f(Type<bf16>{});
    case DType::f16: return f(Type<f16>{});
    default: fail_not_floating(dtype);
  }
}

// Calls f(Type<T>{}), where T is the storage type of `dtype`. Accepts every dtype.
template <class F>
decltype(auto) dispatch_any(DType dtype, const F& f) {
  switch (dtype) {
    case DType::boolean: return f(Type<bool>{});
    case DType::i8: return f(Type<std::int8_t>{});
    case DType::u8: return f(Type<std::uint8_t>{});
    case DType::i16: return f(Type<std::int16_t>{});
    case DType::u16: return f(Type<std::uint16_t>{});
    case DType::i32: return f(Type<std::int32_t>{});
    case DType::u32: return f(Type<std::uint32_t>{});
    case DType::i64: return f(Type<std::int64_t>{});
    case DType::u64: return f(Type<std::uint64_t>{});
    default: return dispatch_floating(dtype, f);
  }
}

}  // namespace polyhead
