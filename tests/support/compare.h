// Compares tensors of any dtype and layout, with messages that say where and by how much they differ.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/dispatch.h"
#include "core/index.h"
#include "polyhead/tensor.h"
#include "support/any_tensor.h"

namespace polyhead::test {

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Returns all elements in row-major order. Exact for every dtype except 64-bit integers beyond 2^53.
std::vector<double> to_doubles(AnyTensor view);

// Returns as text, such as "[1,0,3]", the position in `shape` of the element with the row-major index `index`.
inline std::string position(const Shape& shape, std::int64_t index) { return to_string(position_at(shape, index)); }

// A sum of products, and the sum of their magnitudes.
struct ProductSum {
  double sum = 0, size = 0;
};
// Sums a[i] b[i b_stride] for i < count. It is here, and not in a test, because tests are compiled without optimisation.
ProductSum sum_of_products(const double* a, const double* b, std::size_t b_stride, std::size_t count);

// Returns the largest rounding error of a number in [1, 2).
constexpr double unit_roundoff(DType dtype) { return dtype == DType::f64 ? 0x1p-53 : dtype == DType::f32 ? 0x1p-24 : dtype == DType::f16 ? 0x1p-11 : 0x1p-8; }

// Returns |a - b|. The result is 0 for two equal infinities and for two NaN, and infinity if only one number is NaN.
double difference(double a, double b);

double max_abs_difference(AnyTensor a, AnyTensor b);

// Returns the largest magnitude of the finite elements, or 0 if no element is finite.
double largest_magnitude(AnyTensor view);

// EXPECT_TRUE(near(actual, expected, 1e-12)) checks that every element is within an absolute tolerance; infinities and NaN must be at the same places.
testing::AssertionResult near(AnyTensor actual, AnyTensor expected, double tolerance);

// Compares as near() does, with a tolerance of `share` times the largest magnitude of the expected tensor.
testing::AssertionResult near_relative(AnyTensor actual, AnyTensor expected, double share);

// Checks that tensors are equal bit for bit (NaN payloads and the sign of zero included).
testing::AssertionResult same_bits(AnyTensor actual, AnyTensor expected);

// Returns the message of the Error that f throws, or an empty text if f throws no Error.
template <class F>
std::string error_message(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace polyhead::test
