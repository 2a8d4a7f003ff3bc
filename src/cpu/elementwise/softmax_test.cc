// Compares the softmax kernels with sums in float64, for every instruction set that the processor has.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/select.h"
#include "support/random.h"

namespace polyhead::test {
namespace {

template <class T>
void agrees(const cpu::SoftmaxKernel<T>& kernel, double tolerance) {
  Random random(1);
  for (std::int64_t count = 1; count < 5000; count += count < 200 ? 1 : count < 1020 || count > 1030 ? 409 : 1) {
    SCOPED_TRACE("count " + std::to_string(count));
    std::vector<T> x(static_cast<std::size_t>(count)), y(x.size() + 1, T{7});
    for (T& value : x) value = static_cast<T>(random.real(-30, 30));
    if (count > 1) x[static_cast<std::size_t>(random.integer(0, count - 1))] = -std::numeric_limits<T>::infinity();
    const T largest = *std::ranges::max_element(x);
    const bool finite = std::ranges::all_of(x, [](T value) { return std::isfinite(value); });
    double exps = 0, differences = 0;
    for (const T value : x) exps += std::exp(double{value} - double{largest}), differences += double{value} - double{largest};
    const cpu::SoftmaxRow<T> apart = kernel.exps(count, x.data(), nullptr);
    const cpu::SoftmaxRow<T> row = kernel.exps(count, x.data(), y.data());
    EXPECT_EQ(row.exps, apart.exps);
    EXPECT_EQ(row.largest, largest);
    EXPECT_NEAR(row.exps, exps, tolerance * exps);
    if (finite) {
      EXPECT_NEAR(row.differences, differences, -tolerance * differences);
    } else {
      EXPECT_EQ(row.differences, -std::numeric_limits<double>::infinity());
    }
    kernel.scale(count, T{3}, T{-2}, y.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double e = std::exp(double{x[i]} - double{largest});
      ASSERT_NEAR(y[i], 3 * e - 2, 4 * tolerance) << i;
    }
    EXPECT_EQ(y.back(), T{7});
    std::vector<T> in_place = x;
    kernel.exps(count, in_place.data(), in_place.data());
    kernel.scale(count, T{3}, T{-2}, in_place.data());
    EXPECT_TRUE(std::equal(in_place.begin(), in_place.end(), y.begin()));
  }
}

TEST(SoftmaxKernel, EveryCountAgreesWithFloat64) {
  for (const cpu::KernelSet& set : cpu::kernel_sets()) {
    if (!cpu::missing_for(set, detect_cpu()).empty()) continue;
    SCOPED_TRACE(set.name);
    agrees(cpu::kernels_of<cpu::SoftmaxKernels>(set).of_floats, 1e-6);
    agrees(cpu::kernels_of<cpu::SoftmaxKernels>(set).of_doubles, 1e-14);
  }
}

}  // namespace
}  // namespace polyhead::test
