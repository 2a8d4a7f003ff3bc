// From a dtype at run time to a C++ type at compile time, and the load/store pair of each storage type.
#pragma once

#include "core/text.h"
#include "polyhead/dtype.h"

namespace polyhead {

template <class T>
struct Type {
  using type = T;
};

// The type that arithmetic on a storage type uses: float64 for float64, else float32.
template <class Storage>
using Accumulator = std::conditional_t<std::is_same_v<Storage, double>, double, float>;

template <class T>
  requires(std::is_arithmetic_v<T>)
inline T load(T x) { return x; }
inline float load(bf16 x) { return to_float(x); }
inline float load(f16 x) { return to_float(x); }

// First step from float64 to a 16-bit type. An inexact x becomes the float32 neighbour whose last bit is set (round to odd), so that the
// second rounding cannot mistake it for a tie (Boldo and Melquiond 2008, "Emulation of FMA and correctly rounded sums").
[[gnu::visibility("default")]] float to_float_for_narrowing(double x);  // components call it
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

[[noreturn, gnu::visibility("default")]] void fail_not_floating(DType dtype);  // components call it

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

// Calls f(Type<T>{}) for any dtype.
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
