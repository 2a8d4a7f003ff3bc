// Compares the windows of local_blocks() (polyhead/local_blocks.h) with a boolean mask made by AlphaFold 3's rule, pair by pair.
#include "polyhead/local_blocks.h"

#include <gmock/gmock.h>

#include <cmath>

#include "support/kernel_case.h"

namespace polyhead::test {
namespace {

// Returns the boolean mask of AlphaFold 3's algorithm 7 (Abramson et al. 2024): true where its bias beta is 0, that is where |l - c| < queries / 2 and
// |m - c| < keys / 2 for the middle c of some window.
Tensor algorithm_7(std::int64_t length, std::int64_t queries, std::int64_t keys) {
  Tensor attend(DType::boolean, {length, length});
  for (std::int64_t l = 0; l < length; ++l) {
    const double middle = static_cast<double>(l / queries * queries) + (static_cast<double>(queries) - 1) / 2;
    for (std::int64_t m = 0; m < length; ++m) attend.data<bool>()[l * length + m] = std::abs(static_cast<double>(m) - middle) < static_cast<double>(keys) / 2;
  }
  return attend;
}

TEST(LocalBlocks, AreThePairsOfAlgorithm7) {
  const struct {
    std::int64_t length, queries, keys;
  } cases[] = {{200, 32, 128}, {128, 32, 128}, {7, 32, 128}, {65, 32, 64}, {33, 8, 8}, {50, 6, 10}, {96, 32, 32}, {1, 1, 1}, {37, 5, 11}};
  for (const auto& [length, queries, keys] : cases) {
    SCOPED_TRACE(testing::Message() << length << " atoms, " << queries << " x " << keys);
    Random random(1);
    AttentionCase c = case_of(random, DType::f64, {.lead = {2}, .kv_heads = 2, .group = 2, .queries = length, .keys = length, .qk_width = 9, .v_width = 6});
    AttentionCase dense = case_of(random, DType::f64, c.sizes);
    dense.q = c.q, dense.k = c.k, dense.v = c.v, dense.d_out = c.d_out;
    const LocalBlocks blocks = local_blocks(length, queries, keys);
    const Tensor attend = algorithm_7(length, queries, keys);
    c.options.mask.blocks = blocks, dense.options.mask.attend = attend;
    for (const Backend* const backend : backends()) {
      c.options.backend = dense.options.backend = backend;
      const AttentionOutputs a = c.make_forward_outputs(), b = dense.make_forward_outputs();
      c.forward(a), dense.forward(b);
      EXPECT_TRUE(same_bits(a.out, b.out)) << backend_name(*backend);
      Tensor d_q(DType::f64, c.q.shape()), d_k(DType::f64, c.k.shape()), other_d_q = d_q, other_d_k = d_k;
      sdpa_backward({.q = c.q, .k = c.k, .v = c.v, .out = a.out, .lse = a.lse, .d_out = c.d_out, .d_q = d_q, .d_k = d_k}, c.options);
      sdpa_backward({.q = c.q, .k = c.k, .v = c.v, .out = b.out, .lse = b.lse, .d_out = c.d_out, .d_q = other_d_q, .d_k = other_d_k}, dense.options);
      EXPECT_TRUE(same_bits(d_q, other_d_q)) << backend_name(*backend);
      EXPECT_TRUE(same_bits(d_k, other_d_k)) << backend_name(*backend);
    }
  }
  EXPECT_EQ(local_blocks(200).size.keys, 16);
}

TEST(LocalBlocks, RefuseWindowsThatDoNotFit) {
  for (const auto& sizes : {std::array<std::int64_t, 3>{10, 32, 127}, {10, 0, 0}, {10, 8, 6}, {-1, 32, 128}}) {
    EXPECT_THAT(error_message([&] { local_blocks(sizes[0], sizes[1], sizes[2]); }), testing::HasSubstr("keys - queries must be even")) << sizes[2] << " keys";
  }
}

}  // namespace
}  // namespace polyhead::test
