// Comparing tensors of any dtype and layout, with messages that say where and by how much they differ.
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

// Row major. Exact for every dtype but 64-bit integers beyond 2^53.
inline std::vector<double> to_doubles(AnyTensor view) {
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(view.numel()));
  dispatch_any(view.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const T* data = view.data<T>();
    for_each_offset<1>(view.shape(), {view.strides()}, [&](const auto& at) { values.push_back(static_cast<double>(load(data[at[0]]))); });
  });
  return values;
}

// "[1,0,3]" for the row-major number of a position.
inline std::string position(const Shape& shape, std::int64_t index) { return to_string(position_at(shape, index)); }

// 0 for two equal infinities and for two NaN, infinity where only one of them is NaN.
inline double difference(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  return std::isnan(a - b) ? kInfinity : std::abs(a - b);
}

inline double max_abs_difference(AnyTensor a, AnyTensor b) {
  if (a.shape() != b.shape()) return kInfinity;
  const std::vector<double> x = to_doubles(a), y = to_doubles(b);
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) worst = std::max(worst, difference(x[i], y[i]));
  return worst;
}

// Of the finite elements; 0 when there is none.
inline double largest_magnitude(AnyTensor view) {
  double largest = 0;
  for (const double x : to_doubles(view)) {
    if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
  }
  return largest;
}

// EXPECT_TRUE(near(actual, expected, 1e-12)): every element within an absolute tolerance; infinities and NaN agree in place.
inline testing::AssertionResult near(AnyTensor actual, AnyTensor expected, double tolerance) {
  if (actual.shape() != expected.shape()) {
    return testing::AssertionFailure() << "the shape is " << to_string(actual.shape()) << ", expected " << to_string(expected.shape());
  }
  const std::vector<double> a = to_doubles(actual), e = to_doubles(expected);
  std::int64_t wrong = 0;
  std::size_t worst = 0;
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double off = difference(a[i], e[i]);
    if (off > most) worst = i, most = off;
    if (!(off <= tolerance)) ++wrong;
  }
  if (wrong == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure() << wrong << " of " << a.size() << " elements differ by more than " << tolerance << "; the worst is "
                                     << position(actual.shape(), static_cast<std::int64_t>(worst)) << ": "
                                     << testing::PrintToString(a[worst]) << ", expected " << testing::PrintToString(e[worst]) << ", off by "
                                     << most;
}

// The tolerance is a share of the largest magnitude of what is expected.
inline testing::AssertionResult near_relative(AnyTensor actual, AnyTensor expected, double share) {
  return near(actual, expected, share * largest_magnitude(expected));
}

// Equal bit for bit (NaN payloads and the sign of zero included).
inline testing::AssertionResult same_bits(AnyTensor actual, AnyTensor expected) {
  if (actual.shape() != expected.shape() || actual.dtype() != expected.dtype()) {
    return testing::AssertionFailure() << to_string(actual.shape()) << " against " << to_string(expected.shape()) << ", or another dtype";
  }
  const Tensor a = Tensor::copy_of(actual), e = Tensor::copy_of(expected);
  const auto size = static_cast<std::int64_t>(info(a.dtype()).size);
  const auto *x = static_cast<const char*>(a.view().data()), *y = static_cast<const char*>(e.view().data());
  if (a.numel() == 0 || std::memcmp(x, y, static_cast<std::size_t>(a.numel() * size)) == 0) return testing::AssertionSuccess();
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    if (std::equal(x + i * size, x + (i + 1) * size, y + i * size)) continue;
    return testing::AssertionFailure() << "bits differ at " << position(a.shape(), i) << ": "
                                       << testing::PrintToString(to_doubles(actual)[static_cast<std::size_t>(i)]) << ", expected "
                                       << testing::PrintToString(to_doubles(expected)[static_cast<std::size_t>(i)]);
  }
  return testing::AssertionSuccess();
}

// The message of the Error that f throws; empty when it throws none.
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
