// Compares the keep bits of the dropout kernel with bits computed from one PhiloxBlock at a time, for every instruction set that the processor has.
#include <gtest/gtest.h>

#include <vector>

#include "core/philox.h"
#include "cpu/select.h"

namespace polyhead::test {
namespace {

TEST(DropoutKernel, BitsAreThoseOfOneBlockAtATime) {
  constexpr std::uint8_t kUntouched = 7;
  const double p = 0.3125;
  const auto below = static_cast<std::int64_t>(p * 0x1p32);
  for (const cpu::KernelSet& set : cpu::kernel_sets()) {
    if (!cpu::missing_for(set, detect_cpu()).empty()) continue;
    SCOPED_TRACE(set.name);
    for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{0x123456789abcdef0}}) {
      for (const std::uint32_t row : {0u, 1u, 0xfffffffeu}) {
        for (std::int64_t count = 1; count < 1100; count += count < 140 ? 1 : 97) {
          SCOPED_TRACE("seed " + std::to_string(seed) + " row " + std::to_string(row) + " count " + std::to_string(count));
          const auto room = static_cast<std::size_t>(count + cpu::kernels_of<cpu::DropoutKernels>(set).margin);
          std::vector<std::uint8_t> keep(room + 1, kUntouched), expected(static_cast<std::size_t>(count));
          cpu::kernels_of<cpu::DropoutKernels>(set).keep_row(count, row, seed, below, keep.data());
          EXPECT_EQ(keep.back(), kUntouched);
          DropoutBits(p, seed).row(0, 0, row, 0, count, expected.data());
          for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(keep[i] != 0, expected[i] != 0) << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace polyhead::test
