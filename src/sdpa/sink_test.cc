// Tests sink logits on every backend. A sink logit is one more term in the sum of the softmax (docs/maths.md, section 2).
#include <gmock/gmock.h>

#include "polyhead/maps.h"
#include "support/each_backend.h"
#include "support/kernel_case.h"
#include "support/thread_count.h"

namespace polyhead::test {
namespace {

using Sinks = EachBackend;
INSTANTIATE_TEST_SUITE_P(All, Sinks, testing::ValuesIn(backends()), name_of_backend);

// With these sizes the kernels use whole blocks, key splits, and several passes for attention weights.
const AttentionSizes kSizes[] = {{.lead = {2}, .kv_heads = 2, .group = 2, .queries = 7, .keys = 33, .qk_width = 8, .v_width = 16},
                                 {.lead = {}, .kv_heads = 1, .group = 2, .queries = 1, .keys = 4100, .qk_width = 16, .v_width = 32},
                                 {.lead = {}, .kv_heads = 1, .group = 1, .queries = 90, .keys = 1100, .qk_width = 16, .v_width = 32}};

TEST_P(Sinks, WeightsAndMapsSumToOneLessTheShareOfTheSink) {
  for (const AttentionSizes& sizes : kSizes) {
    for (const double level : {0.0, 6.0, -6.0}) {
      for_each_instruction_set(GetParam(), [&] {
        Random random(1);
        AttentionCase c = case_of(random, DType::f32, sizes, GetParam());
        c.options.sink = c.keep(random.tensor(DType::f32, sizes.lse(), level, level + 2));
        AttentionOutputs o = c.make_outputs();
        o.attention_weights = c.keep(Tensor(DType::f32, sizes.pairs()));
        c.forward(o);
        Tensor map(DType::f32, sizes.pairs());
        attention_map({.q = c.q, .k = c.k}, map, c.options);
        for (const std::vector<double>& weights : {to_doubles(o.attention_weights), to_doubles(map)}) {
          const std::vector<double> lse = to_doubles(o.lse), sink = to_doubles(c.options.sink);
          for (std::size_t row = 0; row < lse.size(); ++row) {
            double sum = 0;
            for (std::int64_t s = 0; s < sizes.keys; ++s) sum += weights[row * static_cast<std::size_t>(sizes.keys) + static_cast<std::size_t>(s)];
            EXPECT_NEAR(sum, 1 - std::exp(sink[row] - lse[row]), 3e-6);
          }
        }
      });
    }
  }
}

TEST_P(Sinks, MinusInfinityIsNoSinkBitForBit) {
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    AttentionCase c = draw_kernel_case(random, seed);
    c.options.backend = GetParam(), c.options.empty_rows = EmptyRows::zero, c.options.sink = {};
    Tensor sink(c.dtype, {c.sizes.heads()});
    fill(sink, -kInfinity);
    for_each_instruction_set(GetParam(), [&] {
      AttentionOutputs without = c.make_outputs(), with = c.make_outputs();
      for (AttentionOutputs* o : {&without, &with}) {
        o->attention_weights = c.keep(Tensor(c.dtype, c.sizes.pairs()));
        c.options.sink = o == &with ? ConstTensorView(sink) : ConstTensorView();
        if (o == &with) o->d_sink = c.keep(random.tensor(c.dtype, sink.shape()));
        c.run(*o);
      }
      Tensor map_with(DType::f64, c.sizes.pairs()), map_without(DType::f64, c.sizes.pairs());
      attention_map({.q = c.q, .k = c.k}, map_with, c.options);
      c.options.sink = {};
      attention_map({.q = c.q, .k = c.k}, map_without, c.options);
      EXPECT_TRUE(same_bits(map_with, map_without));
      for (const double x : to_doubles(with.d_sink)) EXPECT_EQ(x, 0);
      with.d_sink = {};
      expect_same_bits(with, without);
    });
    if (HasFailure()) return;
  }
}

// Tests sinks far above and below the scores, and scores far from 0: no exponential may overflow, and the sink's share may not be lost. The expected results
// are computed in long double.
TEST_P(Sinks, OfAnyMagnitude) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const double level : {0.0, 40.0, -40.0, 300.0, -1e4}) {
      for (const double above : {0.0, 2.5, 30.0, 70.0, 500.0, -30.0, -500.0, 1e30, -1e30}) {
        for (const std::int64_t keys : {5, 700}) {
          SCOPED_TRACE(testing::Message() << info(dtype).name << " scores about " << level << ", sink " << above << " above, keys " << keys);
          Random random(3);
          AttentionCase c = case_of(random, dtype, {.group = 2, .queries = 14, .keys = keys, .qk_width = 8, .v_width = 16}, GetParam());
          Tensor bias(dtype, {1});
          fill(bias, level);
          c.options.bias = bias;
          c.options.sink = c.keep(random.tensor(dtype, {2}, level + above, level + above + 0.5));
          const FullResults expected = naive_attention(c);
          // The largest error that rounding to the dtype can cause in a score near `level` and in a sink.
          const double lost = 8 * epsilon(dtype) * (10 + std::abs(level) + std::min(std::abs(level + above), 1e3));
          for_each_instruction_set(GetParam(), dtype, [&] {
            const AttentionOutputs o = c.make_outputs();
            c.run(o);
            const Tensor out = to_tensor(expected.out, c.sizes.out());  // float32 kernels set attention weights below 2^-120 to 0
            EXPECT_TRUE(near(o.out, out, 2 * lost * largest_magnitude(out) + 0x1p-120)) << "out";
            EXPECT_TRUE(near_relative(o.lse, to_tensor(expected.lse, c.sizes.lse()), 4 * epsilon(dtype))) << "lse";
            EXPECT_TRUE(near(o.d_v, to_tensor(expected.d_v, c.sizes.v()), 20 * lost)) << "d_v";
            EXPECT_TRUE(near(o.d_q, to_tensor(expected.d_q, c.sizes.q()), 20 * lost)) << "d_q";
            EXPECT_TRUE(near(sink_rows(o.d_sink), summed_gradient(expected.d_sink, c.sizes.lse(), sink_rows(o.d_sink)), 60 * lost)) << "d_sink";
          });
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST_P(Sinks, ASinkOfZeroEqualsAKeyAndAValueOfZeros) {
  Random random(4);
  AttentionCase c = case_of(random, DType::f64, kSizes[0], GetParam());
  const Tensor sink(DType::f64, {1, 1});
  c.options.sink = sink;
  AttentionCase padded = case_of(random, DType::f64, kSizes[0], GetParam());
  padded.q = c.q, padded.d_out = c.d_out;
  padded.sizes.keys += 1;
  for (ConstTensorView AttentionCase::*member : {&AttentionCase::k, &AttentionCase::v}) {
    Shape shape = (c.*member).shape();
    shape[-2] += 1;
    const TensorView longer = padded.keep(Tensor(DType::f64, shape));
    copy(c.*member, longer.slice(-2, 0, c.sizes.keys));
    padded.*member = longer;
  }
  const AttentionOutputs o = c.make_outputs(), expected = padded.make_outputs();
  c.run(o), padded.run(expected);
  EXPECT_TRUE(near(o.out, expected.out, 1e-14));
  EXPECT_TRUE(near(o.lse, expected.lse, 1e-14));
  EXPECT_TRUE(near(o.d_q, expected.d_q, 1e-13));
  EXPECT_TRUE(near(o.d_k, ConstTensorView(expected.d_k).slice(-2, 0, c.sizes.keys), 1e-13));
  EXPECT_TRUE(near(o.d_v, ConstTensorView(expected.d_v).slice(-2, 0, c.sizes.keys), 1e-13));
}

TEST_P(Sinks, ARowWithoutKeysBelongsToItsSink) {
  for (const std::int64_t keys : {0, 70}) {
    Random random(5);
    const AttentionSizes sizes{.lead = {2}, .group = 3, .queries = 9, .keys = keys, .qk_width = 8, .v_width = 16};
    AttentionCase c = case_of(random, DType::f32, sizes, GetParam());
    c.options.sink = c.keep(random.tensor(DType::f32, {3}, -50, 50));
    Tensor bias(DType::f32, {9, keys});
    if (keys > 0) fill(bias.view().slice(0, 0, 4), -kInfinity);  // queries 0 to 3 have only scores of -infinity, and query 4 attends to no key
    const Tensor lengths = Tensor::of<std::int32_t>({2, 9}, {70, 70, 70, 70, 0, 70, 70, 70, 70, 70, 70, 70, 70, 0, 70, 70, 70, 70});
    if (keys > 0) c.options.mask.key_lengths = lengths;
    c.options.bias = bias;
    for_each_instruction_set(GetParam(), [&] {
      const AttentionOutputs o = c.make_outputs();
      for (const TensorView& view : {o.out, o.lse, o.d_q, o.d_sink}) fill(view, 7);
      c.run(o);
      const std::int64_t rows = keys > 0 ? 5 : 9;
      for (const double x : to_doubles(o.out.slice(-2, 0, rows))) EXPECT_EQ(x, 0);
      for (const double x : to_doubles(o.d_q.slice(-2, 0, rows))) EXPECT_EQ(x, 0);
      const Tensor sinks = Tensor::copy_of(sink_rows(c.options.sink).expand({2, 3, rows}));
      EXPECT_TRUE(same_bits(o.lse.slice(-1, 0, rows), sinks));
      for (const double x : to_doubles(o.d_sink)) EXPECT_TRUE(keys > 0 ? std::isfinite(x) : x == 0) << x;
    });
  }
}

TEST_P(Sinks, ARowWithoutKeysDoesNotUseItsGradient) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    for (const double value : {kNaN, kInfinity}) {
      Random random(8);
      AttentionCase c = case_of(random, dtype, kSizes[0], GetParam());
      c.options.sink = c.keep(random.tensor(dtype, {4}));
      const Tensor lengths = Tensor::of<std::int32_t>({2}, {33, 0});
      c.options.mask.key_lengths = lengths;
      const TensorView d_out = c.keep(Tensor::copy_of(c.d_out));
      c.d_out = d_out;
      for_each_instruction_set(GetParam(), [&] {
        fill(d_out.slice(0, 1, 2), 1);
        const AttentionOutputs before = c.make_outputs(), after = c.make_outputs();
        c.run(before);
        fill(d_out.slice(0, 1, 2), value);
        c.run(after);
        expect_same_bits(after, before);
      });
    }
  }
}

TEST_P(Sinks, ThatAreNaNOrInfiniteMakeTheirOwnRowsNaN) {
  for (const double value : {kNaN, kInfinity}) {
    Random random(6);
    AttentionCase c = case_of(random, DType::f32, kSizes[0], GetParam());
    const TensorView sink = c.keep(random.tensor(DType::f32, {4, 1}));
    c.options.sink = sink;
    const Tensor attend = random.tensor(DType::boolean, {7, 33});
    c.options.mask.attend = attend;
    for_each_instruction_set(GetParam(), [&] {
      fill(sink, 1);
      AttentionOutputs before = c.make_outputs(), after = c.make_outputs();
      before.attention_weights = c.keep(Tensor(c.dtype, c.sizes.pairs())), after.attention_weights = c.keep(Tensor(c.dtype, c.sizes.pairs()));
      c.run(before);
      fill(sink.slice(0, 2, 3), value);
      c.run(after);
      for (const std::size_t i : {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{6}}) {  // indices of out, lse, d_q and d_sink
        const auto [name, view] = after.list()[i];
        const int axis = i == 6 ? 0 : 1;
        for (const std::int64_t n : {0, 1, 3}) EXPECT_TRUE(same_bits(view.select(axis, n), before.list()[i].second.select(axis, n))) << name;
        for (const double x : to_doubles(view.select(axis, 2))) EXPECT_TRUE(std::isnan(x)) << name;
      }
      const std::vector<double> weights = to_doubles(after.attention_weights.select(1, 2));
      const std::vector<double> attended = to_doubles(attend.view().unsqueeze(0).expand({2, 7, 33}));
      for (std::size_t i = 0; i < weights.size(); ++i) EXPECT_TRUE(attended[i] != 0 ? std::isnan(weights[i]) : weights[i] == 0);
    });
  }
}

TEST_P(Sinks, OfEitherDTypeAndTheirGradientsForAnyNumberOfThreads) {
  const ThreadCount restored;
  for (const AttentionSizes& sizes : kSizes) {
    Random random(7);
    AttentionCase c = case_of(random, DType::bf16, sizes, GetParam());
    const Tensor narrow = random.tensor(DType::bf16, {sizes.heads()}), wide = Tensor::copy_of(narrow, DType::f32);
    std::vector<AttentionOutputs> runs;
    for (const int count : {1, 2, 5}) {
      set_num_threads(count);
      for (const Tensor* sink : {&narrow, &wide}) {
        c.options.sink = *sink;
        runs.push_back(c.make_outputs());
        c.run(runs.back());
      }
    }
    for (std::size_t i = 0; i < runs.size(); ++i) {
      for (std::size_t j = 0; j < 5; ++j) EXPECT_TRUE(same_bits(runs[i].list()[j].second, runs[0].list()[j].second)) << runs[0].list()[j].first;
      EXPECT_TRUE(same_bits(runs[i].d_sink, runs[i % 2].d_sink));
      EXPECT_TRUE(near_relative(runs[i].d_sink, runs[1].d_sink, 0x1p-8));
    }
  }
}

}  // namespace
}  // namespace polyhead::test
