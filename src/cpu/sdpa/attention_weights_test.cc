// Tests that the attention weights of the forward pass equal those of the backend `reference` for every dtype and stride, and that computing them does not change
// other results.
#include <gmock/gmock.h>

#include "support/kernel_case.h"
#include "support/seeds.h"
#include "support/thread_count.h"

namespace polyhead::test {
namespace {

Tensor reference_weights(AttentionCase& c) {
  return reference_map(c, {.q = c.q, .k = c.k}, MapValue::probability);
}

// The tolerance of an attention weight: the error of lse, plus 2^-24 for the rounding of a number in [0,1] to float32, plus the rounding to the dtype.
double tolerance_of(const AttentionCase& c) { return Tolerances(c).lse + 0x1p-24 + storage_rounding(c.dtype); }

TEST(CpuAttentionWeights, AgreeWithTheReferenceAndDoNotChangeTheOutput) {
  for (const std::uint64_t seed : seeds_of_kernels(5000, 400)) {
    SCOPED_TRACE(seed);
    Random random(seed);
    AttentionCase c = draw_kernel_case(random, seed);
    const AttentionOutputs without = reference_forward(c);
    const Tensor expected = reference_weights(c);
    const double tolerance = tolerance_of(c);
    for_each_instruction_set(seed, [&] {
      c.forward(without);
      AttentionOutputs o = c.make_outputs(&random);
      const StridedTensor strided = random.empty_strided(c.dtype, c.sizes.pairs());
      Tensor contiguous(c.dtype, c.sizes.pairs());
      fill(contiguous, kNaN);
      for (const TensorView& weights : {contiguous.view(), strided.view()}) {
        o.attention_weights = weights;
        c.forward(o);
        EXPECT_TRUE(near(weights, expected, tolerance));
        EXPECT_TRUE(same_bits(o.out, without.out)) << "out";
        EXPECT_TRUE(same_bits(o.lse, without.lse)) << "lse";
      }
      EXPECT_TRUE(same_bits(strided, contiguous));
      EXPECT_TRUE(strided.padding_is_intact());
    });
    if (HasFailure()) return;
  }
}

// A task with many keys computes its attention weights in several passes over the packed keys. The bits must not depend on the number of threads.
TEST(CpuAttentionWeights, OfManyKeysAreTheSameForAnyNumberOfThreads) {
  const ThreadCount restored;
  std::uint64_t seed = 0;
  for (const auto& [queries, heads] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {7, 1}, {130, 1}, {40, 8}}) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
      if (quick() && dtype != DType::f32 && queries != 130) continue;
      SCOPED_TRACE(queries);
      SCOPED_TRACE(info(dtype).name);
      Random random(7);
      const AttentionSizes sizes{.kv_heads = heads, .group = 2, .queries = queries, .keys = 4100, .qk_width = 32, .v_width = 64};
      AttentionCase c = case_of(random, dtype, sizes);
      if (queries == 130) c.options.mask.causal = Causal::bottom_right();
      const AttentionOutputs without = reference_forward(c);
      const Tensor expected = reference_weights(c);
      for_each_instruction_set(seed++, [&] {
        Tensor one(dtype, c.sizes.pairs()), several(dtype, c.sizes.pairs());
        AttentionOutputs o = c.make_outputs();
        set_num_threads(1);
        c.forward(without);
        o.attention_weights = one;
        c.forward(o);
        EXPECT_TRUE(near(one, expected, tolerance_of(c)));
        EXPECT_TRUE(same_bits(o.out, without.out));
        set_num_threads(3);
        o.attention_weights = several;
        c.forward(o);
        EXPECT_TRUE(same_bits(several, one));
        EXPECT_TRUE(same_bits(o.out, without.out));
      });
    }
  }
}

TEST(CpuAttentionWeights, ExplainTellsHowTheyAreComputed) {
  const auto path = [](std::int64_t heads, std::int64_t queries) {
    const Tensor q(DType::f32, {heads, queries, 64}), k(DType::f32, {heads, 8192, 64});
    Tensor out(DType::f32, q.shape()), weights(DType::f32, {heads, queries, 8192});
    return explain({.q = q, .k = k, .v = k, .out = out, .attention_weights = weights});
  };
  EXPECT_THAT(path(8, 40), testing::HasSubstr("weights: from the same pass"));
  EXPECT_THAT(path(1, 40), testing::AllOf(testing::HasSubstr("1 of them\n"), testing::HasSubstr("weights: from the same pass")));
}

// If scores rise from key block to key block, the exponentials of earlier blocks must be rescaled: they were computed relative to a smaller score.
TEST(CpuAttentionWeights, OfRisingAndFallingScores) {
  for (const double slope : {0.01, 0.1, -0.1, 30.0}) {
    SCOPED_TRACE(slope);
    Random random(3);
    AttentionCase c = case_of(random, DType::f32, {.queries = 40, .keys = 1700, .qk_width = 16, .v_width = 16});
    Tensor bias(DType::f32, {1700});
    for (std::int64_t s = 0; s < 1700; ++s) bias.data<float>()[s] = static_cast<float>(slope * static_cast<double>(s));
    c.options.bias = bias;
    const Tensor expected = reference_weights(c);
    for_each_instruction_set([&] {
      Tensor weights(DType::f32, c.sizes.pairs());
      AttentionOutputs o = c.make_outputs();
      o.attention_weights = weights;
      c.forward(o);
      EXPECT_TRUE(near(weights, expected, tolerance_of(c)));
      for (std::int64_t t = 0; t < 40; ++t) {
        double sum = 0;
        for (std::int64_t s = 0; s < 1700; ++s) sum += weights.data<float>()[t * 1700 + s];
        EXPECT_NEAR(sum, 1, 1e-5) << t;
      }
    });
  }
}

// If the scores of a row contain a NaN, its attention weights must be NaN at the keys that it attends to, and 0 at masked keys. A NaN in v must not change
// attention weights.
TEST(CpuAttentionWeights, NaNOfAKeyReachesOnlyAttendedKeysAndNaNOfAValueReachesNone) {
  Random random(9);
  AttentionCase c = case_of(random, DType::f32, {.queries = 200, .keys = 1700, .qk_width = 12, .v_width = 16});
  const TensorView k = c.keep(Tensor::copy_of(c.k)), v = c.keep(Tensor::copy_of(c.v));
  c.k = k, c.v = v;
  const Tensor attend = random.tensor(DType::boolean, {200, 1700});
  c.options.mask.attend = attend;
  c.options.backend = &find_backend("cpu");
  for_each_instruction_set([&] {
    fill(k.slice(-2, 700, 701), 1), fill(v.slice(-2, 700, 701), 1);
    Tensor before(DType::f32, c.sizes.pairs()), after(DType::f32, c.sizes.pairs());
    AttentionOutputs o = c.make_outputs(), without = c.make_outputs();
    o.attention_weights = before;
    c.forward(o);
    fill(v.slice(-2, 700, 701), kInfinity);
    o.attention_weights = after;
    c.forward(o);
    EXPECT_TRUE(same_bits(after, before));
    c.forward(without);
    EXPECT_TRUE(same_bits(o.out, without.out));
    fill(k.slice(-2, 700, 701), kNaN);
    c.forward(o);
    for (std::int64_t t = 0; t < 200; ++t) {
      const bool* const kept = attend.data<bool>() + t * 1700;
      for (std::int64_t s = 0; s < 1700; ++s) {
        const float p = after.data<float>()[t * 1700 + s], was = before.data<float>()[t * 1700 + s];
        if (!kept[s]) {
          ASSERT_EQ(p, 0) << t << ' ' << s;
        } else if (kept[700]) {
          ASSERT_TRUE(std::isnan(p)) << t << ' ' << s;
        } else {
          ASSERT_EQ(p, was) << t << ' ' << s;
        }
      }
    }
  });
}

}  // namespace
}  // namespace polyhead::test
