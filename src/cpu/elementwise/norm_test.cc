// Compares the kernels of layer and RMS normalisation with the formulas in float64, for every instruction set that the processor has.
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
      for (const auto& [adds, centred] : {std::pair{false, true}, {true, true}, {false, false}, {true, false}}) {
        SCOPED_TRACE("width " + std::to_string(width) + (adds ? " added" : "") + (centred ? " centred" : ""));
        const std::vector<float> x = numbers(random, width, 3), added = numbers(random, width, -2);
        const std::vector<float> weight = numbers(random, width, 0), bias = numbers(random, width, 0);
        std::vector<float> sums(x.size() + 1, kUntouched), y(x.size() + 1, kUntouched);
        cpu::kernels_of<cpu::NormKernels>(set).normalise_row({.width = width,
                           .centred = centred,
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
          if (centred) mean += values[e] / static_cast<double>(width);
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

TEST(NormBackwardRows, EveryWidthAgreesWithFloat64) {
  for (const cpu::KernelSet& set : cpu::kernel_sets()) {
    if (!cpu::missing_for(set, detect_cpu()).empty()) continue;
    SCOPED_TRACE(set.name);
    Random random(2);
    for (std::int64_t width = 1; width < 300; width += width < 70 ? 1 : 37) {
      const int rows = static_cast<int>(random.integer(1, cpu::NormBackwardRows::kRows));
      const bool add = random.integer(0, 1) != 0, centred = random.integer(0, 1) != 0;
      SCOPED_TRACE("width " + std::to_string(width) + " rows " + std::to_string(rows) + (add ? " added" : "") + (centred ? " centred" : ""));
      const auto n = static_cast<std::size_t>(width);
      const std::vector<float> weight = numbers(random, width, 0);
      std::vector<double> d_weight(n + 1, kUntouched), d_bias = d_weight, expected_weight = d_weight, expected_bias = d_weight;
      std::vector<std::vector<float>> x, d_y, d_x;
      cpu::NormBackwardRows all{.width = width, .centred = centred, .rows = rows, .epsilon = 0.125f, .weight = weight.data(), .x = {}, .d_y = {}, .add = add, .d_weight = d_weight.data(), .d_bias = d_bias.data()};
      for (int row = 0; row < rows; ++row) {
        x.push_back(numbers(random, width, 3));
        d_y.push_back(numbers(random, width, 0));
        d_x.emplace_back(n + 1, kUntouched);
      }
      for (std::size_t row = 0; row < x.size(); ++row) all.x[row] = x[row].data(), all.d_y[row] = d_y[row].data(), all.d_x[row] = d_x[row].data();
      cpu::kernels_of<cpu::NormKernels>(set).backward_rows(all);
      for (std::size_t row = 0; row < x.size(); ++row) {
        const auto count = static_cast<double>(width);
        double mean = 0, variance = 0, d_mean = 0, along = 0;
        for (const float value : x[row]) mean += centred ? value / count : 0;
        for (const float value : x[row]) variance += (value - mean) * (value - mean) / count;
        const double inverse = 1 / std::sqrt(variance + 0.125);
        for (std::size_t e = 0; e < n; ++e) {
          const double g = static_cast<double>(d_y[row][e]) * weight[e], normalised = (x[row][e] - mean) * inverse;
          if (centred) d_mean += g / count;
          along += g * normalised / count;
          expected_weight[e] += d_y[row][e] * normalised;
          expected_bias[e] += d_y[row][e];
        }
        for (std::size_t e = 0; e < n; ++e) {
          const double own = (d_y[row][e] * static_cast<double>(weight[e]) - d_mean - (x[row][e] - mean) * inverse * along) * inverse;
          EXPECT_NEAR(d_x[row][e], own + (add ? kUntouched : 0), 5e-6) << row << ", " << e;
        }
        EXPECT_EQ(d_x[row].back(), kUntouched);
      }
      for (std::size_t e = 0; e <= n; ++e) {  // element n lies after the row, so the kernel must not write it
        EXPECT_NEAR(d_weight[e], expected_weight[e], 5e-6) << e;
        EXPECT_NEAR(d_bias[e], expected_bias[e], 2e-6) << e;
      }
      const std::vector<double> bias_before = d_bias;
      all.d_bias = nullptr;
      cpu::kernels_of<cpu::NormKernels>(set).backward_rows(all);
      EXPECT_EQ(d_bias, bias_before);
      for (std::size_t e = 0; e < n; ++e) EXPECT_NEAR(d_weight[e], 2 * expected_weight[e] - kUntouched, 1e-5) << e;  // a second call adds the same gradient once more
      const std::vector<double> weight_after = d_weight;
      all.d_weight = nullptr;
      cpu::kernels_of<cpu::NormKernels>(set).backward_rows(all);
      EXPECT_EQ(d_weight, weight_after);
    }
  }
}

}  // namespace
}  // namespace polyhead::test
