#include "support/compare.h"

namespace polyhead::test {

std::vector<double> to_doubles(AnyTensor view) {
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(view.numel()));
  dispatch_any(view.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const T* data = view.data<T>();
    for_each_offset<1>(view.shape(), {view.strides()}, [&](const auto& at) { values.push_back(static_cast<double>(load(data[at[0]]))); });
  });
  return values;
}

ProductSum sum_of_products(const double* a, const double* b, std::size_t b_stride, std::size_t count) {
  ProductSum result;
  for (std::size_t i = 0; i < count; ++i) {
    const double product = a[i] * b[i * b_stride];
    result.sum += product, result.size += std::abs(product);
  }
  return result;
}

double difference(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  return std::isnan(a - b) ? kInfinity : std::abs(a - b);
}

double max_abs_difference(AnyTensor a, AnyTensor b) {
  if (a.shape() != b.shape()) return kInfinity;
  const std::vector<double> x = to_doubles(a), y = to_doubles(b);
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) worst = std::max(worst, difference(x[i], y[i]));
  return worst;
}

double largest_magnitude(AnyTensor view) {
  double largest = 0;
  for (const double x : to_doubles(view)) {
    if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
  }
  return largest;
}

testing::AssertionResult near(AnyTensor actual, AnyTensor expected, double tolerance) {
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

testing::AssertionResult near_relative(AnyTensor actual, AnyTensor expected, double share) {
  return near(actual, expected, share * largest_magnitude(expected));
}

testing::AssertionResult same_bits(AnyTensor actual, AnyTensor expected) {
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

}  // namespace polyhead::test
