// Compares the activation kernels with functions of the C library in float64, for every instruction set that the processor has.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "cpu/select.h"
#include "support/random.h"

namespace polyhead::test {
namespace {

struct Function {
  const char* name;
  cpu::ActivationKernel cpu::ActivationKernels::*kernel;
  double (*value)(double x);
  double (*derivative)(double x);
};

double logistic(double x) { return 1 / (1 + std::exp(-x)); }
double cumulative(double x) { return std::erfc(-x / std::numbers::sqrt2) / 2; }
double twice_u(double x) { return 2 * std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x); }

const Function kFunctions[] = {
    {"sigmoid", &cpu::ActivationKernels::sigmoid, logistic, [](double x) { return logistic(x) * logistic(-x); }},
    {"tanh", &cpu::ActivationKernels::tanh, [](double x) { return std::tanh(x); },
     [](double x) { return 4 * logistic(2 * x) * logistic(-2 * x); }},
    {"gelu", &cpu::ActivationKernels::gelu, [](double x) { return x * cumulative(x); },
     [](double x) { return cumulative(x) + x * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi); }},
    {"gelu_tanh", &cpu::ActivationKernels::gelu_tanh, [](double x) { return x * logistic(twice_u(x)); },
     [](double x) {
       const double u = twice_u(x), derivative = 2 * std::sqrt(2 / std::numbers::pi) * (1 + 3 * 0.044715 * x * x);
       return logistic(u) + x * logistic(u) * logistic(-u) * derivative;
     }},
    {"silu", &cpu::ActivationKernels::silu, [](double x) { return x * logistic(x); },
     [](double x) { return logistic(x) + x * logistic(x) * logistic(-x); }},
    {"quick_gelu", &cpu::ActivationKernels::quick_gelu, [](double x) { return x * logistic(1.702 * x); },
     [](double x) { return logistic(1.702 * x) + 1.702 * x * logistic(1.702 * x) * logistic(-1.702 * x); }},
};

template <class F>
void for_each_case(const F& f) {
  for (const cpu::KernelSet& set : cpu::kernel_sets()) {
    if (!cpu::missing_for(set, detect_cpu()).empty()) continue;
    for (const Function& function : kFunctions) {
      SCOPED_TRACE(std::string(set.name) + " " + function.name);
      f(function, cpu::kernels_of<cpu::ActivationKernels>(set).*function.kernel);
    }
  }
}

std::vector<float> arguments() {
  std::vector<float> x{0, -0.0f, 1e-30f, -1e-30f, 1e-8f, 12, -12, 20, -20};
  Random random(1);
  for (int i = 0; i < 4000; ++i) x.push_back(static_cast<float>(random.real(-12, 12)));
  return x;
}

// The tolerance is one unit in the last place, plus an absolute error for results that underflow.
void expect_rounded(float actual, double expected, float x) {
  EXPECT_NEAR(actual, expected, std::abs(expected) * 0x1p-23 + 1e-37) << "x = " << x;
}

TEST(ActivationKernels, ValuesAreRoundedOnce) {
  const std::vector<float> x = arguments();
  for_each_case([&](const Function& function, const cpu::ActivationKernel& kernel) {
    std::vector<float> y(x.size());
    kernel.value(static_cast<std::int64_t>(x.size()), x.data(), y.data());
    for (std::size_t i = 0; i < x.size(); ++i) expect_rounded(y[i], function.value(x[i]), x[i]);
  });
}

TEST(ActivationKernels, GradientsAreRoundedOnceAndAddedIfRequested) {
  const std::vector<float> x = arguments();
  for_each_case([&](const Function& function, const cpu::ActivationKernel& kernel) {
    std::vector<float> d_y(x.size(), 3), d_x(x.size(), 0.25f);
    kernel.backward(static_cast<std::int64_t>(x.size()), x.data(), d_y.data(), true, d_x.data());
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(d_x[i], 0.25 + 3 * function.derivative(x[i]), 4e-7) << "x = " << x[i];
    kernel.backward(static_cast<std::int64_t>(x.size()), x.data(), d_y.data(), false, d_y.data());
    // Near the zero of gelu's derivative its two terms cancel. The absolute tolerance of 1e-8 is for x near this zero.
    for (std::size_t i = 0; i < x.size(); ++i)
      EXPECT_NEAR(d_y[i], 3 * function.derivative(x[i]), std::abs(3 * function.derivative(x[i])) * 0x1p-23 + 1e-8) << "x = " << x[i];
  });
}

TEST(ActivationKernels, EveryCountWritesItsOwnElementsOnly) {
  for_each_case([](const Function& function, const cpu::ActivationKernel& kernel) {
    for (std::int64_t count = 0; count < 40; ++count) {
      std::vector<float> x(static_cast<std::size_t>(count), 0.5f), y(static_cast<std::size_t>(count) + 1, 7);
      kernel.value(count, x.data(), y.data());
      EXPECT_EQ(y.back(), 7) << count;
      for (std::int64_t i = 0; i < count; ++i) expect_rounded(y[static_cast<std::size_t>(i)], function.value(0.5), 0.5f);
    }
  });
}

TEST(ActivationKernels, AnInfiniteGradientStaysInfinite) {
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for_each_case([](const Function& function, const cpu::ActivationKernel& kernel) {
    const float x[] = {1, 0.5f}, d_y[] = {kInfinity, -kInfinity};
    float d_x[2];
    kernel.backward(2, x, d_y, false, d_x);
    EXPECT_EQ(d_x[0], kInfinity) << function.name;
    EXPECT_EQ(d_x[1], -kInfinity) << function.name;
  });
}

TEST(ActivationKernels, LargeInfiniteAndNaNArguments) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kLargest = std::numeric_limits<float>::max();
  for_each_case([](const Function& function, const cpu::ActivationKernel& kernel) {
    const float x[] = {kInfinity, kLargest, 100, -100, -kLargest, std::nanf(""), -kInfinity};
    float y[7], one[7] = {1, 1, 1, 1, 1, 1, 1}, d_x[7];
    kernel.value(7, x, y);
    kernel.backward(7, x, one, false, d_x);
    const bool bounded = function.value(100) == 1;
    EXPECT_EQ(y[0], bounded ? 1 : kInfinity);
    EXPECT_EQ(y[1], bounded ? 1 : kLargest);
    EXPECT_EQ(y[2], bounded ? 1 : 100);
    EXPECT_NEAR(y[3], function.value(-100), 1e-37);
    EXPECT_NEAR(y[4], bounded ? function.value(-100) : 0, 1e-37);
    EXPECT_TRUE(std::isnan(y[5]));
    EXPECT_EQ(d_x[1], bounded ? 0 : 1);
    EXPECT_NEAR(d_x[2], bounded ? 0 : 1, 1e-37);
    EXPECT_EQ(d_x[4], 0);
    EXPECT_TRUE(std::isnan(d_x[5]));
    // an unbounded function such as x Phi(x) is -infinity times 0 at -infinity, which is NaN
    EXPECT_TRUE(bounded ? y[6] == function.value(-kInfinity) : std::isnan(y[6]));
  });
}

}  // namespace
}  // namespace polyhead::test
