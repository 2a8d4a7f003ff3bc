// Tests attention with extents of 0 and 1, with extreme scores, and with unusual shapes.
#include <gmock/gmock.h>

#include "polyhead/maps.h"
#include "support/attention_case.h"
#include "support/each_backend.h"

namespace polyhead::test {
namespace {

using Extents = EachBackend;
INSTANTIATE_TEST_SUITE_P(All, Extents, testing::ValuesIn(backends()), name_of_backend);

TEST_P(Extents, EachOfZeroAndOneComputesForwardBackwardAndMaps) {
  for (int which = 0; which < 6; ++which) {
    for (const std::int64_t extent : {0, 1}) {
      for (const DType dtype : {DType::f64, DType::bf16}) {
        SCOPED_TRACE(which);
        SCOPED_TRACE(extent);
        Random random(1);
        AttentionCase c;
        c.options.backend = GetParam();
        c.dtype = dtype;
        c.sizes = {.lead = {2}, .kv_heads = 2, .group = 2, .queries = 3, .keys = 4, .qk_width = 3, .v_width = 5};
        std::int64_t* const extents[] = {&c.sizes.lead[0], &c.sizes.kv_heads, &c.sizes.queries,
                                         &c.sizes.keys,    &c.sizes.qk_width, &c.sizes.v_width};
        *extents[which] = extent;
        c.draw_inputs(random);
        c.options.bias = c.keep(random.tensor(dtype, {1, 1, 1}));
        c.options.sink = c.keep(random.tensor(dtype, {c.sizes.heads()}));
        const AttentionOutputs o = c.make_outputs();
        for (const auto& [name, view] : o.list()) {
          if (view) fill(view, 7);
        }
        c.run(o);
        const FullResults expected = naive_attention(c);
        const double tolerance = dtype == DType::f64 ? 1e-13 : 0.05;
        EXPECT_TRUE(near(o.out, to_tensor(expected.out, c.sizes.out()), tolerance));
        EXPECT_TRUE(near(o.lse, to_tensor(expected.lse, c.sizes.lse()), tolerance));
        EXPECT_TRUE(near(o.d_q, to_tensor(expected.d_q, c.sizes.q()), tolerance));
        EXPECT_TRUE(near(o.d_k, to_tensor(expected.d_k, c.sizes.k()), tolerance));
        EXPECT_TRUE(near(o.d_v, to_tensor(expected.d_v, c.sizes.v()), tolerance));
        EXPECT_TRUE(near(o.d_bias, summed_gradient(expected.d_score, c.sizes.pairs(), o.d_bias), tolerance));
        EXPECT_TRUE(near(sink_rows(o.d_sink), summed_gradient(expected.d_sink, c.sizes.lse(), sink_rows(o.d_sink)), tolerance));
        const ConstTensorView bias = c.options.bias;
        c.options.bias = {}, c.options.relative_bias.slopes = c.keep(random.tensor(dtype, {c.sizes.heads()}));
        const AttentionOutputs relative = c.make_outputs();
        fill(relative.d_relative_bias, 7);
        c.run(relative);
        const FullMatrices full = full_matrices(c.q, c.k, c.v, c.d_out, c.options);
        const FullResults wanted = naive_attention(full);
        EXPECT_TRUE(near(relative.out, to_tensor(wanted.out, c.sizes.out()), tolerance));
        EXPECT_TRUE(near(relative.d_relative_bias, relative_gradient(full, wanted.d_score, c.options, c.sizes.pairs()), tolerance));
        c.options.bias = bias, c.options.relative_bias = {};

        const MapsInput input{.q = c.q, .k = c.k};
        const AttentionSizes& z = c.sizes;
        Tensor map(DType::f64, z.pairs()), pooled(DType::f64, z.with({z.heads(), 0, 0})), entropy(DType::f64, z.with({z.heads()}));
        Tensor top(DType::f32, z.with({z.heads(), z.queries, z.keys})), keys(DType::i64, top.shape());
        attention_map(input, map, c.options);
        attention_pooled_map(input, pooled, c.options);
        attention_statistics(input, {.entropy = entropy, .largest = during_call(Tensor(DType::f32, entropy.shape()))}, c.options);
        attention_top_keys(input, top, keys, c.options);
        EXPECT_TRUE(near(map, to_tensor(expected.p, z.pairs()), 1e-6));
      }
    }
  }
}

TEST_P(Extents, NoKeysGiveZeroAndMinusInfinity) {
  for (const EmptyRows mode : {EmptyRows::zero, EmptyRows::uniform, EmptyRows::unmasked}) {
    const Tensor q = Random(1).tensor(DType::f32, {2, 3, 4}), k(DType::f32, {2, 0, 4}), v(DType::f32, {2, 0, 5});
    Tensor out = Random(2).tensor(DType::f32, {2, 3, 5}), lse(DType::f32, {2, 3}), d_q = Random(3).tensor(DType::f32, {2, 3, 4});
    sdpa_forward({.q = q, .k = k, .v = v, .out = out, .lse = lse}, {.empty_rows = mode, .backend = GetParam()});
    sdpa_backward({.q = q, .k = k, .v = v, .out = out, .lse = lse, .d_out = out, .d_q = d_q}, {.empty_rows = mode, .backend = GetParam()});
    for (const double x : to_doubles(out)) EXPECT_EQ(x, 0);
    for (const double x : to_doubles(lse)) EXPECT_EQ(x, -kInfinity);
    for (const double x : to_doubles(d_q)) EXPECT_EQ(x, 0);
  }
}

TEST_P(Extents, WithoutAQueryTheGradientsOfKeysValuesAndBiasAreZero) {
  const Tensor q(DType::f32, {2, 0, 4}), k = Random(1).tensor(DType::f32, {2, 3, 4}), v = Random(2).tensor(DType::f32, {2, 3, 5});
  Tensor out(DType::f32, {2, 0, 5}), lse(DType::f32, {2, 0}), d_k = k, d_v = v, bias = Random(3).tensor(DType::f32, {2, 1, 3}),
                                                              d_bias = bias;
  sdpa_backward({.q = q, .k = k, .v = v, .out = out, .lse = lse, .d_out = out, .d_k = d_k, .d_v = d_v, .d_bias = d_bias},
                {.bias = bias, .backend = GetParam()});
  for (const Tensor& gradient : {d_k, d_v, d_bias}) {
    for (const double x : to_doubles(gradient)) EXPECT_EQ(x, 0);
  }
}

// If T = 0, a tensor has no elements, so it may have 2^31 heads. No code may loop over these heads.
TEST_P(Extents, HeadsWithoutQueriesCostNothingHoweverManyThereAre) {
  constexpr std::int64_t kMany = std::int64_t{1} << 31;
  const Shape none{kMany, 1 << 16, 0, 4}, rows{kMany, 1 << 16, 0};
  const TensorView q(nullptr, DType::f32, none), lse(nullptr, DType::f32, rows);
  sdpa_forward({.q = q, .k = q, .v = q, .out = q, .lse = lse}, {.backend = GetParam()});
  sdpa_backward({.q = q, .k = q, .v = q, .out = q, .lse = lse, .d_out = q, .d_q = q, .d_k = q, .d_v = q}, {.backend = GetParam()});
  attention_map({.q = q, .k = q}, TensorView(nullptr, DType::f32, {kMany, 1 << 16, 0, 0}), {.backend = GetParam()});
  attention_statistics({.q = q, .k = q}, {}, {.backend = GetParam()});
}

TEST(Extents, MoreHeadsThanCanBeCountedAreRefused) {
  constexpr std::int64_t kMany = std::int64_t{1} << 40;
  const TensorView q(nullptr, DType::f32, {kMany, kMany, 0, 4}), out(nullptr, DType::f32, {kMany, kMany, 0, 4});
  EXPECT_THAT(error_message([&] { sdpa_forward({.q = q, .k = q, .v = q, .out = out}); }), testing::HasSubstr("2^63 - 1"));
}

TEST_P(Extents, ElevenLeadingDimensionsAreTheSameAsOne) {
  const Shape lead{1, 2, 1, 1, 3, 1, 1, 1, 2, 1, 1};
  AttentionCase many, one;
  many.dtype = one.dtype = DType::f32;
  many.sizes = one.sizes = {.lead = lead, .kv_heads = 1, .group = 2, .queries = 3, .keys = 4, .qk_width = 2, .v_width = 2};
  one.sizes.lead = {12};
  for (AttentionCase* c : {&many, &one}) {
    Random random(4);
    c->q = c->keep(random.tensor(DType::f32, c->sizes.q()));
    c->k = c->keep(random.tensor(DType::f32, c->sizes.k()));
    c->v = c->keep(random.tensor(DType::f32, c->sizes.v()));
    c->d_out = c->keep(random.tensor(DType::f32, c->sizes.out()));
    c->options.dropout = {.p = 0.3, .seed = 5};
    c->options.backend = GetParam();
  }
  const AttentionOutputs a = many.make_outputs(), b = one.make_outputs();
  many.run(a);
  one.run(b);
  EXPECT_TRUE(same_bits(ConstTensorView(a.out).reshape(one.sizes.out()), b.out));
  EXPECT_TRUE(same_bits(ConstTensorView(a.d_k).reshape(one.sizes.k()), b.d_k));
}

using Scores = EachBackend;
INSTANTIATE_TEST_SUITE_P(All, Scores, testing::ValuesIn(backends()), name_of_backend);

// exp(1e4) overflows, so the softmax must subtract the largest score. A single large score gets the whole attention weight; equal scores share it.
TEST_P(Scores, OfPlusAndMinusTenThousandGiveFiniteResults) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    Random random(6);
    AttentionCase c = case_of(random, dtype, {.queries = 4, .keys = 5, .qk_width = 1, .v_width = 2}, GetParam());
    c.q = c.keep(Tensor::copy_of(Tensor::of<double>({1, 4, 1}, {100, -100, 100, 0}), dtype));
    c.k = c.keep(Tensor::copy_of(Tensor::of<double>({1, 5, 1}, {100, -100, 99.99, 3, 100}), dtype));
    const FullResults expected = naive_attention(c);
    const AttentionOutputs o = c.make_outputs();
    c.run(o);
    const double tolerance = dtype == DType::f64 ? 1e-11 : 1e-4;
    EXPECT_TRUE(near(o.out, to_tensor(expected.out, c.sizes.out()), tolerance));
    EXPECT_TRUE(near_relative(o.lse, to_tensor(expected.lse, c.sizes.lse()), tolerance));
    EXPECT_TRUE(near_relative(o.d_q, to_tensor(expected.d_q, c.sizes.q()), tolerance));
    EXPECT_TRUE(near_relative(o.d_k, to_tensor(expected.d_k, c.sizes.k()), tolerance));
    EXPECT_NEAR(to_doubles(o.lse)[0], 1e4 + std::log(2 + std::exp(-1.0)), 1e-2);
    EXPECT_NEAR(to_doubles(o.lse)[1], 1e4, 1e-2);
  }
}

TEST_P(Scores, ASingleLargeScoreGetsAllWeightAndEqualScoresShareIt) {
  const Tensor q = Tensor::of<float>({1, 2, 1}, {50, 0}), k = Tensor::of<float>({1, 4, 1}, {1, 100, 2, 3}),
               v = Tensor::of<float>({1, 4, 1}, {1, 2, 3, 6});
  Tensor out(DType::f32, {1, 2, 1}), lse(DType::f32, {1, 2}), map(DType::f32, {1, 2, 4});
  sdpa_forward({.q = q, .k = k, .v = v, .out = out, .lse = lse}, {.scale = 1, .backend = GetParam()});
  attention_map({.q = q, .k = k}, map, {.scale = 1, .backend = GetParam()});
  EXPECT_EQ(out.data<float>()[0], 2);
  EXPECT_EQ(out.data<float>()[1], 3);
  EXPECT_TRUE(near(map, Tensor::of<float>({1, 2, 4}, {0, 1, 0, 0, 0.25, 0.25, 0.25, 0.25}), 1e-7));
}

}  // namespace
}  // namespace polyhead::test
