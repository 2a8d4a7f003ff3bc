#include "polyhead/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>

#include "core/dispatch.h"
#include "support/random.h"

namespace polyhead {
namespace {

static_assert(DTypeOf<long>::value == DType::i64 && DTypeOf<long long>::value == DType::i64);
static_assert(DTypeOf<unsigned long>::value == DType::u64 && DTypeOf<unsigned long long>::value == DType::u64);
static_assert(DTypeOf<signed char>::value == DType::i8 && DTypeOf<unsigned short>::value == DType::u16 && DTypeOf<int>::value == DType::i32);
template <class T>
concept HasDType = requires { DTypeOf<T>::value; };
static_assert(!HasDType<char> && !HasDType<wchar_t> && !HasDType<char16_t> && HasDType<bool>);

TEST(DType, TableNamesEachTypeOnceWithItsSize) {
  std::set<std::string_view> names, safetensors;
  for (const DTypeInfo& row : kDTypes) {
    SCOPED_TRACE(row.name);
    EXPECT_EQ(&info(row.dtype), &row);
    EXPECT_TRUE(names.insert(row.name).second && safetensors.insert(row.safetensors).second);
    dispatch_any(row.dtype, [&](auto type) {
      using T = typename decltype(type)::type;
      EXPECT_EQ(DTypeOf<T>::value, row.dtype);
      EXPECT_EQ(sizeof(T), row.size);
    });
  }
}

TEST(DType, OnlyFloat64AccumulatesInFloat64) {
  EXPECT_EQ(accumulation_dtype(DType::f64), DType::f64);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) EXPECT_EQ(accumulation_dtype(dtype), DType::f32);
}

// A 16-bit format. value() is the exact value of a bit pattern by the definition in IEEE 754-2019, section 3.4.
struct Format {
  int exponent_bits, fraction_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  double value(std::uint32_t pattern) const {
    const std::uint32_t exponent = pattern >> fraction_bits & ((1u << exponent_bits) - 1), fraction = pattern & ((1u << fraction_bits) - 1);
    const double sign = pattern >> 15 ? -1 : 1;
    if (exponent == (1u << exponent_bits) - 1) return fraction ? std::nan("") : sign * std::numeric_limits<double>::infinity();
    if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias() - fraction_bits);
    return sign * std::ldexp((1u << fraction_bits) + fraction, static_cast<int>(exponent) - bias() - fraction_bits);
  }
  std::uint32_t infinity() const { return ((1u << exponent_bits) - 1) << fraction_bits; }
};

template <class T>
struct Case;
template <>
struct Case<bf16> {
  static constexpr Format kFormat{8, 7};
  static bf16 narrow(float x) { return to_bf16(x); }
};
template <>
struct Case<f16> {
  static constexpr Format kFormat{5, 10};
  static f16 narrow(float x) { return to_f16(x); }
};

template <class T>
class SixteenBits : public testing::Test {};
using SixteenBitTypes = testing::Types<bf16, f16>;
TYPED_TEST_SUITE(SixteenBits, SixteenBitTypes);

TYPED_TEST(SixteenBits, EveryPatternWidensToItsValueAndBack) {
  for (std::uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    const float x = to_float(TypeParam{static_cast<std::uint16_t>(pattern)});
    const double expected = Case<TypeParam>::kFormat.value(pattern);
    const std::uint32_t back = Case<TypeParam>::narrow(x).bits;
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(x)) << pattern;
      ASSERT_TRUE(std::isnan(Case<TypeParam>::kFormat.value(back))) << pattern;
      ASSERT_EQ(back >> 15, pattern >> 15) << pattern;
    } else {
      ASSERT_EQ(x, expected) << pattern;
      ASSERT_EQ(std::signbit(x), std::signbit(expected)) << pattern;
      ASSERT_EQ(back, pattern);
    }
  }
}

// For every two neighbouring 16-bit numbers, their middle rounds to the number whose last bit is 0, and a value beside the middle rounds to the nearer number.
// The upper neighbour of the largest finite number is infinity, which counts as the next power of two here.
TYPED_TEST(SixteenBits, EveryTieGoesToEvenAndItsNeighboursToTheNearest) {
  const Format format = Case<TypeParam>::kFormat;
  for (std::uint32_t low = 0; low < format.infinity(); ++low) {
    const std::uint32_t high = low + 1;
    const double upper = high == format.infinity() ? std::ldexp(1, format.bias() + 1) : format.value(high);
    const double exact = (format.value(low) + upper) / 2;
    const auto middle = static_cast<float>(exact);
    if (static_cast<double>(middle) != exact) continue;  // float32 cannot hold the middle between two of bfloat16's smallest subnormals
    const float below = std::nextafter(middle, 0.0f), above = std::nextafter(middle, std::numeric_limits<float>::infinity());
    for (const std::uint32_t sign : {0u, 0x8000u}) {
      const float factor = sign ? -1.0f : 1.0f;
      ASSERT_EQ(Case<TypeParam>::narrow(factor * middle).bits, sign | (low % 2 == 0 ? low : high)) << low;
      ASSERT_EQ(Case<TypeParam>::narrow(factor * below).bits, sign | low) << low;
      ASSERT_EQ(Case<TypeParam>::narrow(factor * above).bits, sign | high) << low;
    }
  }
}

TYPED_TEST(SixteenBits, RandomFloatsGoToTheNearest) {
  const Format format = Case<TypeParam>::kFormat;
  std::map<double, std::uint32_t> values;  // maps each finite value >= 0 to its bit pattern
  for (std::uint32_t pattern = 0; pattern < format.infinity(); ++pattern) values[format.value(pattern)] = pattern;
  test::Random random(1);
  for (int i = 0; i < 200000; ++i) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(random.integer(0, 0x7f7fffff)));
    const auto above = values.lower_bound(x);
    const std::uint32_t result = Case<TypeParam>::narrow(x).bits;
    const double next = above == values.end() ? std::ldexp(1, format.bias() + 1) : above->first;
    const double last = above == values.begin() ? 0 : std::prev(above)->first;
    const std::uint32_t up = above == values.end() ? format.infinity() : above->second,
                        down = above == values.begin() ? 0 : std::prev(above)->second;
    const double to_next = next - x, to_last = x - last;
    const std::uint32_t nearest = to_next < to_last ? up : to_last < to_next ? down : up % 2 == 0 ? up : down;
    ASSERT_EQ(result, x > next ? format.infinity() : nearest) << x;
  }
}

TYPED_TEST(SixteenBits, Float64RoundsOnce) {
  // x lies one float64 step beside a tie. A conversion through float32 would round x to the tie and the tie to the even neighbour, which is wrong.
  const Format format = Case<TypeParam>::kFormat;
  const std::uint32_t one = static_cast<std::uint32_t>(format.bias()) << format.fraction_bits;
  for (std::uint32_t low = one; low < one + 100; ++low) {
    const double middle = (format.value(low) + format.value(low + 1)) / 2;
    ASSERT_EQ(store<TypeParam>(middle).bits, low % 2 == 0 ? low : low + 1);
    ASSERT_EQ(store<TypeParam>(std::nextafter(middle, 0.0)).bits, low);
    ASSERT_EQ(store<TypeParam>(std::nextafter(middle, 9.0)).bits, low + 1);
    ASSERT_EQ(store<TypeParam>(-std::nextafter(middle, 9.0)).bits, (low + 1) | 0x8000u);
  }
  ASSERT_EQ(store<TypeParam>(1e300).bits, format.infinity());
  ASSERT_EQ(store<TypeParam>(-1e-300).bits, 0x8000u);
  ASSERT_TRUE(std::isnan(format.value(store<TypeParam>(std::nan("")).bits)));
}

TEST(Float16, KnownPatterns) {
  EXPECT_EQ(to_f16(1.0f).bits, 0x3c00);
  EXPECT_EQ(to_f16(-2.0f).bits, 0xc000);
  EXPECT_EQ(to_f16(65504.0f).bits, 0x7bff);
  EXPECT_EQ(to_f16(65519.996f).bits, 0x7bff);
  EXPECT_EQ(to_f16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(to_f16(1.0f / 3).bits, 0x3555);
  EXPECT_EQ(to_f16(0x1p-14f).bits, 0x0400);
  EXPECT_EQ(to_f16(0x1p-24f).bits, 0x0001);
  EXPECT_EQ(to_f16(0x1p-25f).bits, 0x0000);
  EXPECT_EQ(to_f16(0x1.000002p-25f).bits, 0x0001);
  EXPECT_EQ(to_f16(-0.0f).bits, 0x8000);
  EXPECT_EQ(to_f16(-std::numeric_limits<float>::infinity()).bits, 0xfc00);
}

TEST(BFloat16, KnownPatterns) {
  EXPECT_EQ(to_bf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(to_bf16(-2.0f).bits, 0xc000);
  EXPECT_EQ(to_bf16(3.14159274f).bits, 0x4049);
  EXPECT_EQ(to_bf16(1.00390625f).bits, 0x3f80);  // 1 + 2^-8: a tie
  EXPECT_EQ(to_bf16(1.01171875f).bits, 0x3f82);  // 1 + 3 * 2^-8: a tie
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x7f800001u)).bits & 0x7fc0, 0x7fc0);  // a NaN whose only payload bit is among the 16 bits that bfloat16 drops
}

}  // namespace
}  // namespace polyhead
