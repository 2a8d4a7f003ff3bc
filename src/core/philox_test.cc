#include "core/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

namespace polyhead {
namespace {

// The expected numbers are the known answers for philox4x32-10 in the library Random123 (file kat_vectors).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

std::vector<std::uint8_t> bits(double p, std::uint64_t seed, std::int64_t b, std::int64_t n, std::int64_t t, std::int64_t first,
                               std::int64_t count) {
  std::vector<std::uint8_t> keep(static_cast<std::size_t>(count), 7);
  DropoutBits(p, seed).row(b, n, t, first, count, keep.data());
  return keep;
}

TEST(DropoutBits, EveryBitIsAWordOfItsCounter) {
  const std::uint64_t seed = 0x0123456789abcdef;
  const auto keep = bits(0.3, seed, 5, 6, 7, 0, 41);
  for (std::uint32_t s = 0; s < 41; ++s) {
    const std::uint32_t word = philox4x32({s / 4, 7, 6, 5}, {0x89abcdef, 0x01234567})[s % 4];
    EXPECT_EQ(keep[s], word >= 0.3 * 4294967296.0 ? 1 : 0) << s;
  }
}

TEST(DropoutBits, ARowComputedInPiecesHasTheSameBits) {
  const auto whole = bits(0.5, 1, 2, 3, 4, 0, 100);
  for (const std::int64_t first : {0, 1, 2, 3, 4, 5, 63}) {
    for (const std::int64_t count : {0, 1, 2, 3, 4, 5, 37}) {
      const auto piece = bits(0.5, 1, 2, 3, 4, first, count);
      EXPECT_TRUE(std::equal(piece.begin(), piece.end(), whole.begin() + first)) << first << " " << count;
    }
  }
}

TEST(DropoutBits, KeepAShareOfOneMinusP) {
  for (const double p : {0.1, 0.5, 0.9}) {
    const auto keep = bits(p, 3, 0, 0, 0, 0, 100000);
    const int kept = std::accumulate(keep.begin(), keep.end(), 0);
    EXPECT_NEAR(kept, 100000 * (1 - p), 4 * std::sqrt(100000 * p * (1 - p))) << p;  // four standard deviations
  }
  EXPECT_EQ(bits(0, 3, 0, 0, 0, 0, 1000), std::vector<std::uint8_t>(1000, 1));
  EXPECT_EQ(bits(1, 3, 0, 0, 0, 0, 1000), std::vector<std::uint8_t>(1000, 0));
}

TEST(DropoutBits, RowsAndSeedsDiffer) {
  const auto base = bits(0.5, 1, 0, 0, 0, 0, 128);
  EXPECT_NE(bits(0.5, 2, 0, 0, 0, 0, 128), base);
  EXPECT_NE(bits(0.5, std::uint64_t{1} << 32 | 1, 0, 0, 0, 0, 128), base);
  EXPECT_NE(bits(0.5, 1, 1, 0, 0, 0, 128), base);
  EXPECT_NE(bits(0.5, 1, 0, 1, 0, 0, 128), base);
  EXPECT_NE(bits(0.5, 1, 0, 0, 1, 0, 128), base);
}

TEST(DropoutBits, ScaleKeepsTheExpectation) {
  EXPECT_EQ(dropout_scale(0), 1);
  EXPECT_EQ(dropout_scale(0.75), 4);
  EXPECT_EQ(dropout_scale(1), 0);
}

}  // namespace
}  // namespace polyhead
