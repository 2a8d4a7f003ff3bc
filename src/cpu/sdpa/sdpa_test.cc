// Compares the kernels with the reference in random problems, whose sizes lie near multiples of vector, tile and block sizes, for every instruction set of the
// machine.
#include <gmock/gmock.h>

#include "polyhead/maps.h"
#include "support/case_part.h"
#include "support/kernel_case.h"
#include "support/seeds.h"
#include "support/thread_count.h"

namespace polyhead::test {
namespace {

TEST(CpuSdpa, ForwardIsTheReferenceWithinTheErrorOfTheArithmetic) {
  for (const std::uint64_t seed : seeds_of_kernels(0, 500)) {
    SCOPED_TRACE(seed);
    Random random(seed);
    AttentionCase c = draw_kernel_case(random, seed), wide = in_float64(c);
    const AttentionOutputs expected = reference_forward(wide);
    const Tolerances tolerance(c);
    for_each_instruction_set(seed, [&] {
      const AttentionOutputs o = c.make_forward_outputs(&random);
      c.forward(o);
      expect_forward_near(o, expected, tolerance);
    });
    EXPECT_TRUE(padding_is_intact(c.strided()));
    if (HasFailure()) return;
  }
}

TEST(CpuSdpa, BackwardIsTheReferenceWithinTheErrorOfTheArithmetic) {
  for (const std::uint64_t seed : seeds_of_kernels(1000, 400)) {
    SCOPED_TRACE(seed);
    Random random(seed);
    AttentionCase c = draw_kernel_case(random, seed), wide = in_float64(c);
    const AttentionOutputs forward = reference_forward(c), expected = reference_backward(wide, forward);
    const Tolerances t(c);
    for_each_instruction_set(seed, [&] {
      const AttentionOutputs o = c.make_outputs(&random);
      backward_from(c, forward, o);
      expect_gradients_near(o, expected, t);
    });
    EXPECT_TRUE(padding_is_intact(c.strided()));
    if (HasFailure()) return;
  }
}

// At scores of 1e4, exp(score - lse) with a float32 lse would be off by 1e-3, and at scores of 1e38 the result would be meaningless. For rows with such scores the
// kernels compute the sum of the softmax again.
TEST(CpuSdpa, BackwardOfScoresOfAnyMagnitude) {
  for (const double level : {65.0, -300.0, 1e4, -1e4, 1e30, -1e38}) {
    for (const std::int64_t keys : {40, 700}) {
      SCOPED_TRACE(level);
      SCOPED_TRACE(keys);
      Random random(5);
      AttentionCase c = case_of(random, DType::f32, {.group = 2, .queries = 14, .keys = keys, .qk_width = 8, .v_width = 5}, 1);
      const Tensor bias = Tensor::of<float>({1}, {static_cast<float>(level)});
      c.options.bias = bias;
      const AttentionOutputs expected = reference_run(c);
      // Adding the bias rounds a float32 score by up to |level| 2^-24. If this is more than the score itself, all keys have the same attention weight.
      const double lost = std::abs(level) * 0x1p-23;
      for_each_instruction_set([&] {
        const AttentionOutputs o = c.make_outputs();
        backward_from(c, expected, o);
        EXPECT_TRUE(near_relative(o.d_v, expected.d_v, lost < 1 ? 1e-5 + 2 * lost : 5)) << "d_v";
        EXPECT_TRUE(near_relative(o.d_q, expected.d_q, lost < 1 ? 1e-4 + 10 * lost : 50)) << "d_q";
        double sum = 0, total = 0;  // the attention weights of a row sum to 1, so the sum of d_v over the keys must equal the sum of d_out over the rows
        for (const double x : to_doubles(o.d_v)) sum += x;
        for (const double x : to_doubles(c.d_out)) total += x;
        EXPECT_NEAR(sum, total, 1e-3);
      });
    }
  }
}

// The problem has one sequence with one head, so that key splits of the head run on different threads.
TEST(CpuSdpa, BackwardWithKeySplitsIsTheSameForAnyNumberOfThreads) {
  Random random(11);
  AttentionCase c = case_of(random, DType::f32, {.group = 2, .queries = 70, .keys = 2100, .qk_width = 20, .v_width = 12});
  c.options.mask.causal = Causal::bottom_right();
  const AttentionOutputs expected = reference_run(c);
  const ThreadCount restored;
  const Tolerances t(c);
  for_each_instruction_set([&] {
    std::vector<AttentionOutputs> runs;
    for (const int count : {1, 2, 5}) {
      set_num_threads(count);
      runs.push_back(c.make_outputs());
      backward_from(c, expected, runs.back());
      expect_same_bits(runs.back(), runs[0]);
    }
    expect_gradients_near(runs[0], expected, t);
  });
}

// Tests scales of any size and sign. The kernels multiply q by the power of two of the scale and apply the remaining factor in the exponential.
TEST(CpuSdpa, ScaleOfAnySizeAndSign) {
  for (const double scale : {0.0, 1.0, -1.0, 0.125, 0.1, -0.3, 1.99, 1e-30, 3e4, 1e-3}) {
    SCOPED_TRACE(scale);
    Random random(3);
    AttentionCase c = case_of(random, DType::f32, {.group = 2, .queries = 19, .keys = 70, .qk_width = 20, .v_width = 9});
    c.options.scale = scale;
    const AttentionOutputs expected = reference_forward(c);
    for_each_instruction_set([&] {
      const AttentionOutputs o = c.make_outputs();
      c.forward(o);
      EXPECT_TRUE(near(o.out, expected.out, Tolerances(c).out));
      EXPECT_TRUE(near_relative(o.lse, expected.lse, 1e-6));
    });
  }
}

TEST(CpuSdpa, ScoresOfAnyMagnitude) {
  struct Row {
    const char* name;
    double bias, spike;
  };
  for (const Row& row : {Row{"+1e4", 1e4, 1e4}, Row{"-1e4", -1e4, -1e4}, Row{"one spike", 0, 1e4}, Row{"-1e38", -1e38, -1e38},
                         Row{"lowest", -3.4028234e38, -3.4028234e38}, Row{"largest", 3.4028234e38, 3.4028234e38}, Row{"one left", -kInfinity, 1},
                         Row{"none", -kInfinity, -kInfinity}, Row{"one of -1e38", -kInfinity, -1e38}, Row{"lowest and zero", -3.4028234e38, 0}}) {
    for (const std::int64_t spike : {0, 63, 600}) {
      SCOPED_TRACE(row.name);
      SCOPED_TRACE(spike);
      Random random(5);
      AttentionCase c = case_of(random, DType::f32, {.queries = 14, .keys = 700, .qk_width = 8, .v_width = 5}, 0.01);
      Tensor bias(DType::f32, {700});
      fill(bias, row.bias);
      fill(bias.view().slice(0, spike, spike + 1), row.spike);
      c.options.bias = bias;
      const AttentionOutputs expected = reference_forward(c);
      for_each_instruction_set([&] {
        const AttentionOutputs o = c.make_outputs();
        c.forward(o);
        // With a bias of 1e4, a float32 score is rounded to a multiple of 1e-3. With a bias of 1e38, <q,k> is lost in rounding, and every score equals the bias.
        EXPECT_TRUE(near_relative(o.out, expected.out, std::abs(row.spike) > 1 || std::abs(row.bias) < 1e30 ? 0.2 : 1e-5));
        EXPECT_TRUE(near_relative(o.lse, expected.lse, 1e-6));
      });
    }
  }
}

TEST(CpuSdpa, NaNOfAKeyReachesExactlyTheRowsThatAttendToIt) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    AttentionSizes sizes{.lead = {2}, .group = 2, .queries = random.integer(1, 40), .keys = random.integer(2, 150), .qk_width = 12};
    sizes.v_width = random.pick<std::int64_t>({16, 17});  // the kernel reads v of width 16 in place, and packs v of width 17
    AttentionCase c = case_of(random, kDTypes[seed % 5], sizes);
    const std::int64_t keys = sizes.keys, poisoned = random.integer(0, keys - 1);
    const TensorView k = c.keep(Tensor::copy_of(c.k)), v = c.keep(Tensor::copy_of(c.v));
    c.k = k, c.v = v;
    Tensor attend = random.tensor(DType::boolean, {c.sizes.queries, keys});
    c.options.mask.attend = attend;
    if (random.coin()) c.options.mask.causal = Causal::bottom_right();
    c.options.backend = &find_backend("cpu");
    for_each_instruction_set(seed, [&] {
      fill(k.slice(-2, poisoned, poisoned + 1), 1);
      fill(v.slice(-2, poisoned, poisoned + 1), 1);
      const AttentionOutputs before = c.make_outputs(), after = c.make_outputs();
      c.forward(before);
      fill(v.slice(-2, poisoned, poisoned + 1), random.pick({kNaN, kInfinity}));
      if (random.coin()) fill(k.slice(-2, poisoned, poisoned + 1), kNaN);
      c.forward(after);
      for (std::int64_t t = 0; t < c.sizes.queries; ++t) {
        const bool seen = attend.data<bool>()[t * keys + poisoned] && (!c.options.mask.causal || poisoned <= t + keys - c.sizes.queries);
        const ConstTensorView row = ConstTensorView(after.out).select(2, t);
        if (!seen) {
          EXPECT_TRUE(same_bits(row, ConstTensorView(before.out).select(2, t))) << t;
          EXPECT_TRUE(same_bits(ConstTensorView(after.lse).select(2, t), ConstTensorView(before.lse).select(2, t))) << t;
        } else {
          for (const double x : to_doubles(row)) EXPECT_FALSE(std::isfinite(x)) << t;
        }
      }
    });
    if (HasFailure()) return;
  }
}

TEST(CpuSdpa, NaNReachesOnlyTheGradientsOfAttendedPairs) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const AttentionSizes sizes{
        .lead = {2}, .group = 2, .queries = random.integer(2, 40), .keys = random.integer(2, 150), .qk_width = 12, .v_width = 17};
    AttentionCase c = case_of(random, kDTypes[seed % 5], sizes);
    const Tensor attend = random.tensor(DType::boolean, {c.sizes.queries, c.sizes.keys}), bias = random.tensor(c.dtype, c.sizes.pairs());
    c.options.mask.attend = attend;
    c.options.bias = bias;
    for (ConstTensorView* operand : {&c.q, &c.k, &c.v}) {
      const TensorView copied = c.keep(Tensor::copy_of(*operand));
      const std::int64_t row = random.integer(0, copied.extent(-2) - 1);
      if (random.coin()) fill(copied.slice(-2, row, row + 1), kNaN);
      *operand = copied;
    }
    const AttentionOutputs expected = reference_run(c);
    const double tolerance = is_native(c) ? 0x1p-6 : 1e-2;  // 2^-6: one unit in the last place of bfloat16 numbers between 2 and 4
    for_each_instruction_set(seed, [&] {
      const AttentionOutputs o = c.make_outputs();
      backward_from(c, expected, o);
      for (std::size_t i = 2; i < 6; ++i) EXPECT_TRUE(near(o.list()[i].second, expected.list()[i].second, tolerance)) << o.list()[i].first;
    });
    if (HasFailure()) return;
  }
}

TEST(CpuSdpa, BackwardInKeySplitsWithHeadsOfWidthZero) {
  Random random(1);
  AttentionCase c = case_of(random, DType::f32, {.queries = 4, .keys = 1100, .qk_width = 0, .v_width = 3});
  const AttentionOutputs expected = reference_run(c);
  const AttentionOutputs o = c.make_outputs();
  backward_from(c, expected, o);
  EXPECT_TRUE(near(o.d_v, expected.d_v, 1e-6));
}

// If q and k have width 0, all scores are 0 and each row of `out` is the mean of all values. Before each call, another call leaves numbers other than 0 in the
// scratch memory, which must not be read.
TEST(CpuSdpa, HeadsOfWidthZeroGiveTheMeanOfAllValues) {
  std::uint64_t seed = 0;
  for (const std::int64_t queries : {3, 17, 40, 100}) {
    for (const auto& [qk_width, v_width] : {std::pair<std::int64_t, std::int64_t>{0, 64}, {64, 0}, {0, 0}}) {
      SCOPED_TRACE(queries);
      Random random(1);
      AttentionCase before = case_of(random, DType::bf16, {.kv_heads = 2, .queries = queries, .keys = 700, .qk_width = 64, .v_width = 64}, 9);
      AttentionCase c = case_of(random, DType::bf16, {.kv_heads = 2, .queries = queries, .keys = 700, .qk_width = qk_width, .v_width = v_width});
      const AttentionOutputs expected = reference_run(c);
      before.options.backend = c.options.backend = &find_backend("cpu");
      for_each_instruction_set(seed++, [&] {
        before.run(before.make_outputs());
        const AttentionOutputs o = c.make_outputs();
        c.run(o);
        EXPECT_TRUE(near_relative(o.lse, expected.lse, 1e-5)) << "lse";
        EXPECT_TRUE(near(o.out, expected.out, 2e-2)) << "out";
        EXPECT_TRUE(near(o.d_v, expected.d_v, 2e-2)) << "d_v";
        EXPECT_TRUE(near(o.d_q, expected.d_q, 1e-2)) << "d_q";
        EXPECT_TRUE(near(o.d_k, expected.d_k, 1e-2)) << "d_k";
      });
    }
  }
}

TEST(CpuSdpa, BitsOfASequenceDoNotDependOnHowManyThereAre) {
  Random random(2);
  AttentionCase c = case_of(random, DType::f32, {.lead = {9}, .group = 2, .queries = 20, .keys = 1100, .qk_width = 16, .v_width = 16});
  const AttentionOutputs all = c.make_outputs();
  c.run(all);
  AttentionCase first = alone(c, sequence_of(c, 0));
  expect_same_bits_alone(c, all, sequence_of(c, 0), first);
}

TEST(CpuSdpa, ScalesAndCapsBeyondFloat32AreLeftToTheReference) {
  const Tensor q = Tensor::of<float>({1, 2, 1}, {1e-20f, 2e-20f}), k = Tensor::of<float>({1, 2, 1}, {1e-20f, -1e-20f}), v = Tensor::of<float>({1, 2, 1}, {1, 2});
  for (const SdpaOptions& options : {SdpaOptions{.scale = 1e39}, SdpaOptions{.softcap = 1e39}, SdpaOptions{.softcap = 1e-39}}) {
    Tensor out(DType::f32, {1, 2, 1});
    sdpa_forward({.q = q, .k = k, .v = v, .out = out}, options);
    for (const double x : to_doubles(out)) EXPECT_TRUE(x >= 1 && x <= 2) << x;
    SdpaOptions forced = options;
    forced.backend = &find_backend("cpu");
    EXPECT_THAT(error_message([&] { sdpa_forward({.q = q, .k = k, .v = v, .out = out}, forced); }), testing::HasSubstr("2^-110 to 2^60"));
  }
}

TEST(CpuSdpa, MapsAreTheReferenceWithinTheErrorOfTheArithmetic) {
  for (const std::uint64_t seed : seeds_of_kernels(2000, 300)) {
    SCOPED_TRACE(seed);
    Random random(seed);
    AttentionCase c = draw_kernel_case(random, seed);
    const MapsInput input{.q = c.q, .k = c.k};
    const Tolerances tolerance(c);
    const double kept = kept_factor(c.options.dropout);
    std::vector<std::int64_t> chosen;
    for (std::int64_t t = 0; t < c.sizes.queries; ++t) {
      if (random.coin()) chosen.insert(chosen.begin(), t);
    }
    for (const MapValue value : {MapValue::scaled_score, MapValue::capped_score, MapValue::score, MapValue::probability, MapValue::dropped}) {
      SCOPED_TRACE(static_cast<int>(value));
      const Tensor expected = reference_map(c, input, value);
      for_each_instruction_set(seed, [&] {
        Tensor all(DType::f64, c.sizes.pairs()), rows(DType::f64, c.sizes.with({c.sizes.heads(), static_cast<std::int64_t>(chosen.size()), c.sizes.keys}));
        attention_map(input, all, c.options, value);
        EXPECT_TRUE(near(all, expected, tolerance.lse * kept));
        attention_map_rows(input, chosen, rows, c.options, value);
        for (std::size_t i = 0; i < chosen.size(); ++i) {
          EXPECT_TRUE(same_bits(rows.view().select(-2, static_cast<std::int64_t>(i)), all.view().select(-2, chosen[i]))) << chosen[i];
        }
      });
      if (HasFailure()) return;
    }
  }
}

TEST(CpuSdpa, ExplainNamesTheKernelAndItsMemory) {
  const Tensor q(DType::f32, {1, 8, 512, 64});
  Tensor out(DType::f32, q.shape());
  for_each_instruction_set([&] {
    const std::string text = explain({.q = q, .k = q, .v = q, .out = out});
    EXPECT_NE(text.find("backend: cpu\nkernel: " + std::string(kernel_instruction_set()) + ", blocks of "), std::string::npos) << text;
    EXPECT_NE(text.find("bytes per thread"), std::string::npos) << text;
    EXPECT_EQ(text.find("weights"), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace polyhead::test
