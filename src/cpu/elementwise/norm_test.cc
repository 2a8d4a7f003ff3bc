// The kernels' layer normalisation against float64, through every instruction set that the processor has.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "cpu/select.h"
#include "support/random.h"

namespace polyhead::test {
namespace {

constexpr float kUntouched = 7;

std::vector<float> numbers(Random& random, std::int64_t count, double offset) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>(offset + random.real(-1, 1));
  return values;
}

TEST(NormaliseRow, EveryWidthAgreesWithFloat64) {
  for (const cpu::KernelSet& set : cpu::kernel_sets()) {
    if (!cpu::missing_for(set, detect_cpu()).empty()) continue;
    SCOPED_TRACE(set.name);
    Random random(1);
    for (std::int64_t width = 1; width < 300; width += width < 140 ? 1 : 37) {
      for (const bool adds : {false, true}) {
        SCOPED_TRACE("width " + std::to_string(width) + (adds ? " added" : ""));
        const std::vector<float> x = numbers(random, width, 3), added = numbers(random, width, -2);
        const std::vector<float> weight = numbers(random, width, 0), bias = numbers(random, width, 0);
        std::vector<float> sums(x.size() + 1, kUntouched), y(x.size() + 1, kUntouched);
        set.norm.normalise_row({.width = width,
                           .epsilon = 0.125f,
                           .weight = weight.data(),
                           .bias = bias.data(),
                           .x = x.data(),
                           .added = adds ? added.data() : nullptr,
                           .sums = adds ? sums.data() : nullptr,
                           .y = y.data()});
        std::vector<double> values(x.begin(), x.end());
        double mean = 0, variance = 0;
        for (std::size_t e = 0; e < x.size(); ++e) {
          if (adds) {
            EXPECT_EQ(sums[e], x[e] + added[e]);
            values[e] = sums[e];
          }
          mean += values[e] / static_cast<double>(width);
        }
        for (const double value : values) variance += (value - mean) * (value - mean) / static_cast<double>(width);
        for (std::size_t e = 0; e < x.size(); ++e)
          EXPECT_NEAR(y[e], (values[e] - mean) / std::sqrt(variance + 0.125) * weight[e] + bias[e], 3e-6) << e;
        EXPECT_EQ(sums.back(), kUntouched);
        EXPECT_EQ(y.back(), kUntouched);
      }
    }
  }
}

}  // namespace
}  // namespace polyhead::test
