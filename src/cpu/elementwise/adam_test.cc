// Compares a step of the AdamW kernel with the equations of AdamW in float64, for every instruction set that the processor has.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "cpu/select.h"
#include "support/random.h"

namespace polyhead::test {
namespace {

template <class T>
using Step = void (*)(std::int64_t count, const cpu::AdamStep& step, const T* g, T* m, T* v, T* p);

template <class T>
void agrees(Step<T> kernel, double tolerance) {
  const cpu::AdamStep step{.keep = 0.75, .rate = 0.5, .new_m = 0.125, .old_v = 0.5, .new_v = 0.25, .root_scale = 1.5, .epsilon = 0.375};
  Random random(1);
  for (std::int64_t count = 0; count < 300; count += count < 70 ? 1 : 37) {
    SCOPED_TRACE("count " + std::to_string(count));
    const auto numbers = [&](double low) {
      std::vector<T> values(static_cast<std::size_t>(count) + 1);
      for (T& value : values) value = static_cast<T>(random.real(low, 2));
      return values;
    };
    const std::vector<T> g = numbers(-2), old_m = numbers(-2), old_v = numbers(0), old_p = numbers(-2);
    std::vector<T> m = old_m, v = old_v, p = old_p;
    kernel(count, step, g.data(), m.data(), v.data(), p.data());
    for (std::size_t i = 0; i + 1 < g.size(); ++i) {
      const double g_i = g[i], m_i = 0.875 * double{old_m[i]} + 0.125 * g_i, v_i = 0.5 * double{old_v[i]} + 0.25 * g_i * g_i;
      ASSERT_NEAR(m[i], m_i, tolerance) << i;
      ASSERT_NEAR(v[i], v_i, tolerance) << i;
      ASSERT_NEAR(p[i], 0.75 * double{old_p[i]} - 0.5 * m_i / (1.5 * std::sqrt(v_i) + 0.375), tolerance) << i;
    }
    EXPECT_EQ(m.back(), old_m.back());
    EXPECT_EQ(v.back(), old_v.back());
    EXPECT_EQ(p.back(), old_p.back());
  }
}

TEST(AdamKernel, EveryCountAgreesWithFloat64) {
  for (const cpu::KernelSet& set : cpu::kernel_sets()) {
    if (!cpu::missing_for(set, detect_cpu()).empty()) continue;
    SCOPED_TRACE(set.name);
    agrees(cpu::kernels_of<cpu::AdamKernels>(set).of_floats, 2e-6);
    agrees(cpu::kernels_of<cpu::AdamKernels>(set).of_doubles, 4e-15);
  }
}

}  // namespace
}  // namespace polyhead::test
