// Tests that the bits of a row do not depend on its place in a tile, nor on whether the other rows of its strip are computed by other code of the kernels.
#include "support/kernel_case.h"

namespace polyhead::test {
namespace {

// A score of 3e38 fits into float32. The exponential multiplies scores by log2(e), and 3e38 log2(e) would overflow.
TEST(CpuSdpaRows, LargestScoresWithoutABias) {
  for (const std::int64_t key : {0, 40, 610}) {
    for (const double value : {2e38, 3e38, -3e38}) {
      SCOPED_TRACE(key);
      SCOPED_TRACE(value);
      Random random(3);
      AttentionCase c = case_of(random, DType::f32, {.queries = 14, .keys = 700, .qk_width = 1, .v_width = 16}, 0.01);
      c.options.scale = 1;
      const TensorView q = c.keep(Tensor::copy_of(c.q)), k = c.keep(Tensor::copy_of(c.k));
      c.q = q, c.k = k;
      // Only row 4 has large scores.
      fill(q, 0), fill(q.slice(-2, 4, 5), 1e19), fill(k, 1e-20);
      fill(value > 0 ? k.slice(-2, key, key + 1) : k, value / 1e19);
      const AttentionOutputs expected = reference_forward(c), o = c.make_outputs();
      c.options.backend = &find_backend("cpu");
      for_each_instruction_set([&] {
        c.forward(o);
        EXPECT_TRUE(near_relative(o.out, expected.out, 1e-5));
        EXPECT_TRUE(near_relative(o.lse, expected.lse, 1e-6));
      });
      if (HasFailure()) return;
    }
  }
}

TEST(CpuSdpaRows, AnEmptyRowIsZeroBesideNaNOfAnEarlierBlock) {
  for (const std::int64_t width : {16, 17}) {
    SCOPED_TRACE(width);
    Random random(4);
    AttentionCase c = case_of(random, DType::f32, {.queries = 14, .keys = 1100, .qk_width = 8, .v_width = width}, 1);
    Tensor bias(DType::f32, {14, 1100});
    fill(bias, 0.0);
    fill(bias.view().slice(0, 3, 4), -kInfinity);
    c.options.bias = bias;
    const TensorView v = c.keep(Tensor::copy_of(c.v));
    fill(v.slice(-2, 1, 2), kNaN);
    c.v = v;
    for_each_instruction_set([&] {
      const AttentionOutputs o = c.make_outputs();
      c.forward(o);
      for (const double x : to_doubles(ConstTensorView(o.out).select(-2, 3))) EXPECT_EQ(x, 0);
    });
  }
}

// One row of a strip is computed by different code than the other rows, because its lse is NaN or too large for tiles, or because it attends to no key. The
// bits of the other rows must not depend on it, with one key block and with several.
TEST(CpuSdpaRows, GradientsHaveTheSameBitsWhateverTheOtherRowsOfTheirStripAre) {
  for (const std::int64_t keys : {5, 40, 100, 600}) {
    for (const bool biased : {false, true}) {
      SCOPED_TRACE(keys);
      SCOPED_TRACE(biased);
      Random random(5);
      AttentionCase c = case_of(random, DType::f32, {.queries = 20, .keys = keys, .qk_width = 16, .v_width = 16}, 1);
      const TensorView q = c.keep(Tensor::copy_of(c.q)), bias = c.keep(random.tensor(DType::f32, {20, keys}));
      c.q = q;
      if (biased) c.options.bias = bias;
      const Tensor kept_q = Tensor::copy_of(q), kept_bias = Tensor::copy_of(bias);
      for_each_instruction_set([&] {
        const AttentionOutputs before = c.make_outputs(), after = c.make_outputs();
        c.run(before);
        for (const std::int64_t row : {1, 8, 13}) {
          for (const double value : {1000.0, kNaN, -kInfinity}) {
            value == -kInfinity ? fill(bias.slice(0, row, row + 1), value) : fill(q.slice(-2, row, row + 1), value);
            c.run(after);
            for (std::int64_t t = 0; t < 20; ++t) {
              if (t == row) continue;
              EXPECT_TRUE(same_bits(ConstTensorView(after.d_q).select(-2, t), ConstTensorView(before.d_q).select(-2, t))) << t;
            }
            copy(kept_q, q), copy(kept_bias, bias);
          }
        }
      });
      if (HasFailure()) return;
    }
  }
}

// A row's place in a tile depends on the other queries, heads and threads of the call. The row's result must have the same bits at every place.
TEST(CpuSdpaRows, TheSameBitsAtEveryPlaceOfATile) {
  constexpr std::int64_t kQueries = 20;
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const std::int64_t keys : {40, 119, 600}) {
      SCOPED_TRACE(testing::Message() << info(dtype).name << " " << keys);
      Random random(7);
      const auto drawn = [&](std::int64_t rows, std::int64_t width) { return random.tensor(dtype, {1, 1, rows, width}); };
      const Tensor q = drawn(kQueries, 13), k = drawn(keys, 13), v = drawn(keys, 19), d_out = drawn(kQueries, 19);
      const Tensor bias = drawn(kQueries, keys), attend = random.tensor(DType::boolean, {keys});
      Tensor starts(DType::i64, {1, kQueries}), lengths(DType::i64, {1, kQueries});
      for (std::int64_t t = 0; t < kQueries; ++t) starts.data<std::int64_t>()[t] = t % 3 * 9, lengths.data<std::int64_t>()[t] = keys - 3 * (t % 5);
      Tensor out(dtype, d_out.shape()), lse(dtype, {1, 1, kQueries}), d_q(dtype, q.shape()), d_k(dtype, k.shape()), d_v(dtype, v.shape());
      // Runs the problem without the queries before `first`, so that each row has a different place in its tile and strip.
      const auto run = [&](std::int64_t first) {
        const auto rows = [&](auto view, int axis) { return view.slice(axis, first, kQueries); };
        SdpaOptions options{.mask = {.key_starts = rows(starts.view(), -1), .key_lengths = rows(lengths.view(), -1), .attend_keys = attend}, .bias = rows(bias.view(), -2)};
        const TensorView own_out = rows(out.view(), -2), own_lse = rows(lse.view(), -1);
        sdpa_forward({.q = rows(q.view(), -2), .k = k, .v = v, .out = own_out, .lse = own_lse}, options);
        sdpa_backward({.q = rows(q.view(), -2), .k = k, .v = v, .out = own_out, .lse = own_lse, .d_out = rows(d_out.view(), -2),
                       .d_q = rows(d_q.view(), -2), .d_k = d_k, .d_v = d_v},
                      options);
      };
      for_each_instruction_set([&] {
        run(0);
        const Tensor whole = Tensor::copy_of(out), whole_d_q = Tensor::copy_of(d_q);
        for (std::int64_t first = 1; first < 8; ++first) {
          run(first);
          EXPECT_TRUE(same_bits(out, whole)) << first;
          EXPECT_TRUE(same_bits(d_q, whole_d_q)) << first;
        }
      });
      if (HasFailure()) return;
    }
  }
}

TEST(CpuSdpaRows, RowsWithoutAKeyBesideRowsOfSeveralBlocks) {
  Random random(6);
  AttentionCase c = case_of(random, DType::f32, {.lead = {1}, .queries = 20, .keys = 600, .qk_width = 16, .v_width = 16}, 1);
  Tensor lengths(DType::i64, {1, 20});
  for (std::int64_t t = 0; t < 20; ++t) lengths.data<std::int64_t>()[t] = t % 3 == 1 ? 0 : 600 - 20 * t;
  c.options.mask.key_lengths = lengths;
  const AttentionOutputs expected = reference_run(c);
  for_each_instruction_set([&] {
    const AttentionOutputs o = c.make_outputs();
    c.run(o);
    for (std::size_t i = 0; i < 5; ++i) EXPECT_TRUE(near(o.list()[i].second, expected.list()[i].second, 1e-5)) << o.list()[i].first;
  });
}

// A bias of any dtype and stride is added with one rounding, so results have the same bits for any stride.
TEST(CpuSdpaRows, ABiasHasTheSameBitsForAnyStride) {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
    for (const std::int64_t keys : {7, 24, 41, 60}) {
      SCOPED_TRACE(info(dtype).name);
      SCOPED_TRACE(keys);
      Random random(6);
      AttentionCase c = case_of(random, dtype, {.queries = 9, .keys = keys, .qk_width = 16, .v_width = 16});
      const Tensor bias = random.tensor(dtype, {9, keys}, -2, 2);
      Tensor apart(dtype, {9, 3 * keys}), backwards = bias;
      copy(bias, apart.view().slice(-1, 0, 3 * keys, 3));
      copy(bias, backwards.view().slice(-1, 0, keys, -1));
      c.options.backend = &find_backend("cpu");
      for_each_instruction_set([&] {
        std::vector<AttentionOutputs> runs;
        for (const ConstTensorView& view : {bias.view(), ConstTensorView(apart.view().slice(-1, 0, 3 * keys, 3)),
                                            ConstTensorView(backwards.view().slice(-1, 0, keys, -1))}) {
          c.options.bias = view;
          runs.push_back(c.make_outputs());
          c.run(runs.back());
          EXPECT_TRUE(same_bits(runs.back().out, runs[0].out));
          EXPECT_TRUE(same_bits(runs.back().lse, runs[0].lse));
          EXPECT_TRUE(same_bits(runs.back().d_q, runs[0].d_q));
          EXPECT_TRUE(same_bits(runs.back().d_k, runs[0].d_k));
        }
      });
    }
  }
}

}  // namespace
}  // namespace polyhead::test
