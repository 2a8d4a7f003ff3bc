#include "polyhead/nn/seed.h"

#include <gtest/gtest.h>

#include <set>

namespace polyhead::nn {
namespace {

TEST(DeriveSeed, SeedsDifferAndStay) {
  std::set<std::uint64_t> seeds;
  for (std::uint64_t seed = 0; seed < 30; ++seed)
    for (std::uint64_t number = 0; number < 30; ++number) seeds.insert(derive_seed(seed, number));
  EXPECT_EQ(seeds.size(), 900u);
  EXPECT_EQ(derive_seed(3, 4), derive_seed(3, 4));
  EXPECT_NE(derive_seed(3, 4), derive_seed(3, 4 + (std::uint64_t{1} << 32)));
}

}  // namespace
}  // namespace polyhead::nn
