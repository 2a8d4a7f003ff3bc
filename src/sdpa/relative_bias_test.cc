// Tests ALiBi and T5's buckets (polyhead/relative_bias.h) against published numbers and against a full bias [*,N,T,S] of the same values. Tests of random
// problems elsewhere compare relative biases with the backend `reference`.
#include <gmock/gmock.h>

#include "polyhead/maps.h"
#include "support/each_backend.h"
#include "support/kernel_case.h"

namespace polyhead::test {
namespace {

// The expected buckets are computed by hand from T5's formula for 32 buckets and max_distance 128: 8 + floor(8 log(d / 8) / log 16) in each direction.
TEST(RelativeBuckets, AreThoseOfT5) {
  const auto both = [](std::int64_t x) { return relative_bucket(x, 32, true, 128); };
  const auto back = [](std::int64_t x) { return relative_bucket(x, 32, false, 128); };
  EXPECT_EQ(both(0), 0);
  EXPECT_EQ(both(-1), 1);
  EXPECT_EQ(both(1), 17);
  EXPECT_EQ(both(-7), 7);
  EXPECT_EQ(both(-11), 8);
  EXPECT_EQ(both(-12), 9);
  EXPECT_EQ(both(-15), 9);
  EXPECT_EQ(both(-16), 10);
  EXPECT_EQ(both(64), 16 + 14);
  EXPECT_EQ(both(-90), 14);
  EXPECT_EQ(both(-91), 15);
  EXPECT_EQ(both(-1'000'000), 15);
  EXPECT_EQ(both(std::numeric_limits<std::int64_t>::min()), 15);
  EXPECT_EQ(both(std::numeric_limits<std::int64_t>::max()), 31);
  EXPECT_EQ(back(5), 0);
  EXPECT_EQ(back(0), 0);
  EXPECT_EQ(back(-15), 15);
  EXPECT_EQ(back(-18), 16);
  EXPECT_EQ(back(-19), 17);
  EXPECT_EQ(back(-128), 31);
}

// The expected slopes are those of the ALiBi paper for 8 heads, and of the ALiBi authors' code for 12 heads: the slopes for 8, then every second slope for 16.
TEST(AlibiSlopes, AreThoseOfThePaper) {
  const Tensor eight = alibi_slopes(8), twelve = alibi_slopes(12);
  for (int i = 0; i < 8; ++i) {
    EXPECT_FLOAT_EQ(eight.data<float>()[i], std::exp2(-static_cast<float>(i + 1)));
    EXPECT_FLOAT_EQ(twelve.data<float>()[i], std::exp2(-static_cast<float>(i + 1)));
  }
  for (int i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(twelve.data<float>()[8 + i], std::exp2(-0.5F - static_cast<float>(i)));
  EXPECT_FLOAT_EQ(alibi_slopes(1).data<float>()[0], std::exp2(-8.0F));
  EXPECT_EQ(alibi_slopes(0).numel(), 0);
}

using RelativeBiases = EachBackend;
INSTANTIATE_TEST_SUITE_P(All, RelativeBiases, testing::ValuesIn(backends()), name_of_backend);

// A full bias [*,N,T,S] with the same numbers gives the same results. The gradient of the full bias, summed over the pairs of a head or bucket, is the gradient
// of the slopes or of the table.
TEST_P(RelativeBiases, EqualAFullBiasOfTheSameValues) {
  int compared = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    AttentionCase c = draw_case(random, seed % 2 == 0 ? DType::f32 : DType::f64, seed % 25 == 0 ? draw_long_sizes(random) : draw_block_sizes(random));
    if (!c.options.relative_bias) continue;
    ++compared;
    c.options.backend = GetParam();
    const FullMatrices full = full_matrices(c.q, c.k, c.v, c.d_out, c.options);
    const Tensor bias = Tensor::copy_of(to_tensor(full.bias, c.sizes.pairs()), c.dtype);
    const SdpaOptions relative = c.options;
    for_each_instruction_set(GetParam(), [&] {
      c.options = relative;
      AttentionOutputs o = c.make_outputs();
      o.attention_weights = c.keep(Tensor(c.dtype, c.sizes.pairs()));
      c.run(o);
      Tensor map(DType::f64, c.sizes.pairs()), wanted_map(DType::f64, c.sizes.pairs());
      attention_map(c.maps(), map, c.options, MapValue::score);
      c.options.relative_bias = {}, c.options.bias = bias;
      if (relative.relative_bias && c.options.mask.diagonal_offsets && !c.options.mask.causal && !c.options.mask.window.left && !c.options.mask.window.right)
        c.options.mask.diagonal_offsets = {};
      AttentionOutputs x = c.make_outputs();
      x.attention_weights = c.keep(Tensor(c.dtype, c.sizes.pairs()));
      c.run(x);
      attention_map(c.maps(), wanted_map, c.options, MapValue::score);
      EXPECT_TRUE(same_bits(map, wanted_map)) << "map";
      EXPECT_TRUE(same_bits(o.attention_weights, x.attention_weights)) << "attention_weights";
      for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(same_bits(o.list()[i].second, x.list()[i].second)) << o.list()[i].first;
      const Tolerances t(c);
      // The gradients may differ in rounding. If pairs share elements of a bias gradient, the schedule may divide rows and keys in another way.
      const double tolerance[] = {0, 0, t.d_q, t.d_k, t.d_v};
      for (std::size_t i = 2; i < 5; ++i) EXPECT_TRUE(near(o.list()[i].second, x.list()[i].second, tolerance[i])) << o.list()[i].first;
      const std::vector<double> d_bias = to_doubles(x.d_bias);
      const Tensor wanted = relative_gradient(full, Matrix(d_bias.begin(), d_bias.end()), relative, c.sizes.pairs());
      c.options = relative;
      const Tolerances own(c);
      EXPECT_TRUE(near(o.d_relative_bias, wanted, own.d_relative_bias + own.relative * largest_magnitude(wanted))) << "d_relative_bias";
      c.options = relative;
    });
    if (HasFailure()) return;
  }
  EXPECT_GE(compared, 40);
}

// The sequences have different diagonals. If these are far apart, the distances form several ranges; if they are near, a single range.
TEST_P(RelativeBiases, SequencesWithDiagonalsFarApart) {
  Random random(5);
  const Tensor q = random.tensor(DType::f64, {4, 2, 2, 4}), k = random.tensor(DType::f64, {4, 2, 5, 4}), v = random.tensor(DType::f64, {4, 2, 5, 4});
  const Tensor slopes = Tensor::of<double>({2}, {0.25, 0.001});
  const Tensor offsets = Tensor::of<std::int64_t>({4}, {3, 1'000'000'000, 4, 2'000'000'000});
  Tensor out(DType::f64, {4, 2, 2, 4});
  SdpaOptions options{.mask = {.diagonal_offsets = offsets}, .relative_bias = {.slopes = slopes}, .backend = GetParam()};
  sdpa_forward({.q = q, .k = k, .v = v, .out = out}, options);
  options.mask = {};
  for (std::int64_t b = 0; b < 4; ++b) {
    SCOPED_TRACE(b);
    options.relative_bias.diagonal = Diagonal::offset(offsets.data<std::int64_t>()[b]);
    Tensor alone(DType::f64, {1, 2, 2, 4});
    const auto own = [&](const Tensor& x) { return ConstTensorView(x).slice(0, b, b + 1); };
    sdpa_forward({.q = own(q), .k = own(k), .v = own(v), .out = alone}, options);
    EXPECT_TRUE(same_bits(own(out), alone));
  }
}

// A relative bias may name a diagonal if it equals the diagonal of the mask. A window that names no diagonal has the one at the bottom right.
TEST_P(RelativeBiases, MayNameTheDiagonalOfTheMask) {
  Random random(8);
  AttentionCase c;
  c.sizes = {.lead = {1}, .kv_heads = 2, .queries = 3, .keys = 7, .qk_width = 4, .v_width = 4};
  c.draw_inputs(random);
  c.options.backend = GetParam();
  c.options.relative_bias.slopes = c.keep(random.tensor(DType::f64, {2}));
  for (const Mask& mask : {Mask{.window = {.left = 1}}, Mask{.causal = Causal::offset(2)}, Mask{.window = {.right = 1, .diagonal = Diagonal::top_left()}}}) {
    c.options.mask = mask, c.options.relative_bias.diagonal = {};
    AttentionOutputs without = c.make_outputs(), with = c.make_outputs();
    c.forward(without);
    c.options.relative_bias.diagonal = mask.causal ? *mask.causal : mask.window.diagonal.value_or(Diagonal::bottom_right());
    c.forward(with);
    EXPECT_TRUE(same_bits(with.out, without.out));
    EXPECT_TRUE(near(with.out, to_tensor(naive_attention(c).out, c.sizes.out()), 1e-13));
  }
}

// All heads share one slope, by a stride of 0. The gradient of this slope is the sum over the heads.
TEST_P(RelativeBiases, GradientOfASharedSlope) {
  Random random(6);
  AttentionCase c;
  c.sizes = {.lead = {2}, .kv_heads = 2, .group = 2, .queries = 9, .keys = 21, .qk_width = 8, .v_width = 8};
  c.draw_inputs(random);
  c.options.backend = GetParam();
  const Tensor slope = Tensor::of<double>({1}, {0.3});
  c.options.relative_bias.slopes = ConstTensorView(slope).expand({4});
  AttentionOutputs each = c.make_outputs(), shared = c.make_outputs();
  Tensor sum(DType::f64, {1});
  shared.d_relative_bias = sum.view().expand({4});
  c.run(each), c.run(shared);
  double wanted = 0;
  for (const double d : to_doubles(each.d_relative_bias)) wanted += d;
  EXPECT_NEAR(sum.data<double>()[0], wanted, 1e-13);
}

}  // namespace
}  // namespace polyhead::test
