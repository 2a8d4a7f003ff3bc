// Tests which attention weights dropout keeps, and that dense_mask() allows the pairs that all members of the mask allow.
#include "core/philox.h"
#include "polyhead/maps.h"
#include "sdpa/dense_mask.h"
#include "support/compare_outputs.h"
#include "support/each_backend.h"

namespace polyhead::test {
namespace {

TEST(Dropout, BitsAreThoseOfPhiloxKeyedBySeedAndPosition) {
  constexpr std::uint64_t kSeed = 0x123456789abcdef0;
  Tensor keep(DType::boolean, {2, 2, 3, 7});  // keep bits [B,N,T,S] with B = 2, N = 2
  dropout_keep_bits(0.3, kSeed, keep);
  for (std::uint32_t i = 0; i < 2 * 2 * 3 * 7; ++i) {
    const std::uint32_t s = i % 7, t = i / 7 % 3, n = i / 21 % 2, b = i / 42;
    const PhiloxBlock block = philox4x32({s / 4, t, n, b}, {0x9abcdef0, 0x12345678});
    EXPECT_EQ(keep.data<bool>()[i], block[s % 4] >= 0.3 * 0x1p32) << i;
  }
}

TEST(Dropout, BitsDoNotDependOnTheSizesOrStrides) {
  Tensor small(DType::boolean, {1, 2, 3, 5}), large(DType::boolean, {4, 3, 9, 17});
  dropout_keep_bits(0.5, 7, small);
  dropout_keep_bits(0.5, 7, large);
  const ConstTensorView corner = large.view().slice(0, 0, 1).slice(1, 0, 2).slice(2, 0, 3).slice(3, 0, 5);
  EXPECT_TRUE(same_bits(small, corner));
  const StridedTensor strided = Random(3).empty_strided(DType::boolean, small.shape());
  dropout_keep_bits(0.5, 7, strided);
  EXPECT_TRUE(same_bits(strided, small));
  EXPECT_TRUE(strided.padding_is_intact());
}

TEST(Dropout, KeepsTheRequestedShare) {
  for (const double p : {0.0, 0.1, 0.5, 0.9, 1.0}) {
    Tensor keep(DType::boolean, {4, 4, 50, 50});
    dropout_keep_bits(p, 11, keep);
    double kept = 0;
    for (const double x : to_doubles(keep)) kept += x;
    const double n = static_cast<double>(keep.numel());
    EXPECT_NEAR(kept / n, 1 - p, 5 * std::sqrt(p * (1 - p) / n)) << p;
  }
}

using DroppedProbabilities = EachBackend;
INSTANTIATE_TEST_SUITE_P(All, DroppedProbabilities, testing::ValuesIn(backends()), name_of_backend);

TEST_P(DroppedProbabilities, GeneratedBitsAreTheOnesThatForwardUses) {
  Random random(1);
  AttentionCase c = case_of(random, DType::f64, {.lead = {2, 2}, .group = 2, .queries = 4, .keys = 6, .qk_width = 3, .v_width = 2}, GetParam());
  c.options.dropout = {.p = 0.5, .seed = 99};
  const AttentionOutputs generated = c.make_outputs();
  c.run(generated);
  Tensor keep(DType::boolean, c.sizes.pairs()), folded(DType::boolean, {4, 2, 4, 6});
  dropout_keep_bits(0.5, 99, keep);
  dropout_keep_bits(0.5, 99, folded);
  EXPECT_TRUE(same_bits(keep.view().reshape(folded.shape()), folded)) << "leading dimensions [2,2] must have the same bits as [4]";
  c.options.dropout.keep = keep;
  const AttentionOutputs given = c.make_outputs();
  c.run(given);
  expect_same_bits(given, generated);
}

TEST_P(DroppedProbabilities, AreZeroForPOneAndUnchangedForPZero) {
  Random random(2);
  AttentionCase c = case_of(random, DType::f64, {.kv_heads = 2, .queries = 3, .keys = 5, .qk_width = 3, .v_width = 2}, GetParam());
  const AttentionOutputs plain = c.make_outputs(), none = c.make_outputs(), all = c.make_outputs();
  c.run(plain);
  c.options.dropout = {.p = 0, .seed = 5};
  c.run(none);
  c.options.dropout = {.p = 1, .seed = 5};
  c.run(all);
  EXPECT_TRUE(same_bits(none.out, plain.out));
  EXPECT_TRUE(same_bits(all.lse, plain.lse));
  for (const TensorView& view : {all.out, all.d_q, all.d_k, all.d_v}) {
    for (const double x : to_doubles(view)) EXPECT_EQ(x, 0);
  }
}

TEST(DenseMask, AllowsThePairsThatAllItsMembersAllow) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    AttentionCase c;
    c.sizes = draw_sizes(random);
    draw_mask(random, c);
    draw_documents(random, c);
    const Shape pairs = c.sizes.pairs();
    const Tensor dense = dense_mask("mask", c.options.mask, c.sizes.lead, c.sizes.heads(), c.sizes.queries, c.sizes.keys);
    const PairRule rule(c.options.mask, pairs);
    const std::vector<double> actual = to_doubles(dense.view().expand(pairs));
    for (std::size_t pair = 0; pair < actual.size(); ++pair) {
      const auto at = static_cast<std::int64_t>(pair);
      const std::int64_t s = at % c.sizes.keys, t = at / c.sizes.keys % c.sizes.queries,
                         b = at / c.sizes.keys / c.sizes.queries / c.sizes.heads();
      EXPECT_EQ(actual[pair] != 0, rule.keeps(b, t, s, pair));
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace polyhead::test
