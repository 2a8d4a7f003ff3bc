// The storage types of tensors (DType), and a table of their sizes and names. File formats, messages and the choice of C++ types use this table.
#pragma once

#if __cplusplus < 202002L
#error "polyhead needs C++20: compile with -std=c++20"
#endif

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#pragma GCC visibility push(default)
namespace polyhead {

enum class DType : std::uint8_t { f32, f64, bf16, f16, boolean, i8, u8, i16, u16, i32, u32, i64, u64 };

enum class DTypeKind : std::uint8_t { floating, boolean, integer };

struct DTypeInfo {
  DType dtype;
  DTypeKind kind;
  std::size_t size;              // bytes per element
  std::string_view name;         // the dtype's name in messages
  std::string_view safetensors;  // the dtype's name in the header of a safetensors file
  std::string_view npy;          // the dtype's name in the header of a little-endian npy file; empty: npy cannot store this dtype
};

inline constexpr std::array<DTypeInfo, 13> kDTypes{{
    {DType::f32, DTypeKind::floating, 4, "float32", "F32", "<f4"},
    {DType::f64, DTypeKind::floating, 8, "float64", "F64", "<f8"},
    {DType::bf16, DTypeKind::floating, 2, "bfloat16", "BF16", ""},
    {DType::f16, DTypeKind::floating, 2, "float16", "F16", "<f2"},
    {DType::boolean, DTypeKind::boolean, 1, "bool", "BOOL", "|b1"},
    {DType::i8, DTypeKind::integer, 1, "int8", "I8", "|i1"},
    {DType::u8, DTypeKind::integer, 1, "uint8", "U8", "|u1"},
    {DType::i16, DTypeKind::integer, 2, "int16", "I16", "<i2"},
    {DType::u16, DTypeKind::integer, 2, "uint16", "U16", "<u2"},
    {DType::i32, DTypeKind::integer, 4, "int32", "I32", "<i4"},
    {DType::u32, DTypeKind::integer, 4, "uint32", "U32", "<u4"},
    {DType::i64, DTypeKind::integer, 8, "int64", "I64", "<i8"},
    {DType::u64, DTypeKind::integer, 8, "uint64", "U64", "<u8"},
}};

constexpr const DTypeInfo& info(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)]; }

constexpr bool is_floating(DType dtype) { return info(dtype).kind == DTypeKind::floating; }
constexpr bool is_integer(DType dtype) { return info(dtype).kind == DTypeKind::integer; }

// Returns the dtype in which sums are computed: float64 for tensors stored as float64, float32 for tensors stored in a narrower dtype.
constexpr DType accumulation_dtype(DType storage) { return storage == DType::f64 ? DType::f64 : DType::f32; }

// A bf16 or f16 holds the two bytes of a number and has no arithmetic: kernels convert it to float32.
struct bf16 {
  std::uint16_t bits;
};
struct f16 {
  std::uint16_t bits;
};

// The DType of a C++ type: DTypeOf<float>::value == DType::f32.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> { static constexpr DType value = DType::f32; };
template <>
struct DTypeOf<double> { static constexpr DType value = DType::f64; };
template <>
struct DTypeOf<bf16> { static constexpr DType value = DType::bf16; };
template <>
struct DTypeOf<f16> { static constexpr DType value = DType::f16; };
template <>
struct DTypeOf<bool> { static constexpr DType value = DType::boolean; };
// The DType of an integer type follows from its width and sign, so long and long long have the same DType if both have 64 bits. Character types have no DType.
template <std::integral T>
  requires(!std::is_same_v<T, char> && !std::is_same_v<T, wchar_t> && !std::is_same_v<T, char8_t> && !std::is_same_v<T, char16_t> &&
           !std::is_same_v<T, char32_t>)
struct DTypeOf<T> {
  static constexpr DType value = sizeof(T) == 1   ? (std::is_signed_v<T> ? DType::i8 : DType::u8)
                                 : sizeof(T) == 2 ? (std::is_signed_v<T> ? DType::i16 : DType::u16)
                                 : sizeof(T) == 4 ? (std::is_signed_v<T> ? DType::i32 : DType::u32)
                                                  : (std::is_signed_v<T> ? DType::i64 : DType::u64);
};

// to_bf16() and to_f16() round to nearest even; NaN stays NaN, and overflow becomes infinity (IEEE 754-2019, section 4.3).
float to_float(bf16 x);
float to_float(f16 x);
bf16 to_bf16(float x);
f16 to_f16(float x);

}  // namespace polyhead
#pragma GCC visibility pop
