// Compares the kernels of sdpa_jvp() and sdpa_backward_backward() with the reference.
#include "support/last_piece_first.h"
#include "support/second_kernel_case.h"
#include "support/seeds.h"

namespace polyhead::test {
namespace {

SecondCase draw_second(Random& random, std::uint64_t seed) {
  SecondCase second{.c = draw_kernel_case(random, seed), .tangents = {}, .forward = {}};
  second.c.options.precision = Precision::exact;
  second.tangents = draw_tangents(random, second.c);
  second.run_forward();
  return second;
}

TEST(CpuSdpaSecond, RandomProblemsAgreeWithTheReference) {
  for (const std::uint64_t seed : seeds_of_kernels(0, 480)) {
    SCOPED_TRACE(seed);
    Random random(seed + 6'000'000), layout(seed + 1'000'000);
    SecondCase second = draw_second(random, seed);
    SecondCase wide = in_float64(second);
    const SecondOutputs expected = wide.make_outputs();
    wide.jvp(expected), wide.backward_backward(expected);
    const Tolerances first(second.c);
    const SecondTolerances tolerances(second, first);
    for_each_instruction_set(seed, [&] {
      const SecondOutputs o = second.make_outputs(&layout);
      second.jvp(o), second.backward_backward(o);
      expect_near(o, expected, tolerances, first.relative);
      EXPECT_TRUE(padding_is_intact(second.c.strided()));
    });
    if (HasFailure()) return;
  }
}

// With few queries and many keys, key splits run on different threads. The two products of a split (d_x k and d_x' k') must be added to each other first, and
// then to the sums of other splits. One thread adds in this order.
TEST(CpuSdpaSecond, KeySplitsOnSeveralThreadsGiveTheBitsOfOneThread) {
  Random random(8);
  SecondCase second{.c = case_of(random, DType::f32, {.kv_heads = 4, .group = 2, .queries = 3, .keys = 1100, .qk_width = 64, .v_width = 64}), .tangents = {}, .forward = {}};
  AttentionCase& c = second.c;
  second.tangents = {.q = c.keep(random.tensor(DType::f32, c.q.shape())), .k = c.keep(random.tensor(DType::f32, c.k.shape())), .v = c.keep(random.tensor(DType::f32, c.v.shape()))};
  second.run_forward();
  for_each_instruction_set([&] {
    LastPieceFirst one(1), many(64);
    const SecondOutputs expected = second.make_outputs(), o = second.make_outputs();
    c.options.executor = &one, second.jvp(expected), second.backward_backward(expected);
    c.options.executor = &many, second.jvp(o), second.backward_backward(o);
    c.options.executor = nullptr;
    EXPECT_GT(many.pieces, 8) << "both passes together have 8 key/value heads: with more than 8 pieces, keys are split";
    const auto found = o.list(), bits = expected.list();
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (found[i].second) {
        EXPECT_TRUE(same_bits(found[i].second, bits[i].second)) << found[i].first;
      }
    }
  });
}

// A NaN in an input must reach the results that depend on this input, and no others. The reference computes which results these are.
TEST(CpuSdpaSecond, NaNReachesExactlyTheResultsThatDependOnIt) {
  int reached = 0;
  for (const std::uint64_t seed : seeds_of_kernels(0, 240)) {
    SCOPED_TRACE(seed);
    Random random(seed + 7'000'000);
    SecondCase second = draw_second(random, seed);
    AttentionCase& c = second.c;
    c.options.dropout = {};  // no dropout: the kernels set dropped entries to 0, but the reference multiplies them by 0, which keeps a NaN
    const auto poisoned = [&](const ConstTensorView& view) -> ConstTensorView {
      if (!view || view.numel() == 0 || random.integer(0, 3) != 0) return view;
      const TensorView copy = c.keep(Tensor::copy_of(view));
      const std::int64_t at = random.integer(0, view.numel() - 1);
      fill(copy.reshape({copy.numel()}).slice(0, at, at + 1), kNaN);
      return copy;
    };
    c.q = poisoned(c.q), c.k = poisoned(c.k), c.v = poisoned(c.v), c.d_out = poisoned(c.d_out);
    SdpaTangents& t = second.tangents;
    t.q = poisoned(t.q), t.k = poisoned(t.k), t.v = poisoned(t.v), t.bias = poisoned(t.bias), t.sink = poisoned(t.sink);
    if (random.integer(0, 3) == 0) c.options.sink = poisoned(c.options.sink);
    second.run_forward();
    SecondCase wide = in_float64(second);
    const SecondOutputs expected = wide.make_outputs();
    wide.jvp(expected), wide.backward_backward(expected);
    const Tolerances first(c);
    const SecondTolerances tolerances(second, first);
    for (const auto& [name, view] : expected.list()) {
      for (const double x : view ? to_doubles(view) : std::vector<double>()) reached += std::isnan(x);
    }
    for_each_instruction_set(seed, [&] {
      const SecondOutputs o = second.make_outputs();
      second.jvp(o), second.backward_backward(o);
      expect_near(o, expected, tolerances, first.relative);
    });
    if (HasFailure()) return;
  }
  EXPECT_GT(reached, 1000);
}

void expect_same(const SecondOutputs& actual, const SecondOutputs& expected) {
  const auto a = actual.list(), e = expected.list();
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (e[i].second) {
      EXPECT_TRUE(same_bits(a[i].second, e[i].second)) << a[i].first;
    }
  }
}

TEST(CpuSdpaSecond, BitsDoNotDependOnThreadsOrStrides) {
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed + 8'000'000), layout(seed);
    SecondCase second = draw_second(random, seed);
    AttentionCase& c = second.c;
    for_each_instruction_set(seed, [&] {
      LastPieceFirst one(1);
      c.options.executor = &one;
      const SecondOutputs expected = second.make_outputs();
      second.jvp(expected), second.backward_backward(expected);
      for (const int threads : {2, 3, 8}) {
        LastPieceFirst many(threads);
        c.options.executor = &many;
        const SecondOutputs o = second.make_outputs(&layout);
        second.jvp(o), second.backward_backward(o);
        expect_same(o, expected);
      }
      c.options.executor = nullptr;
      const ConstTensorView q = c.q, k = c.k, v = c.v;
      c.q = c.keep(Tensor::copy_of(q)), c.k = c.keep(Tensor::copy_of(k)), c.v = c.keep(Tensor::copy_of(v));
      const SecondOutputs contiguous = second.make_outputs();
      second.jvp(contiguous), second.backward_backward(contiguous);
      expect_same(contiguous, expected);
      c.q = q, c.k = k, c.v = v;
    });
    if (HasFailure()) return;
  }
}

// The scores are so large that a float32 lse is off by up to 60 (1e9 x 2^-24). The kernels must not use such an lse in exp(score - lse).
TEST(CpuSdpaSecond, ScoresOfAnySizeAreExact) {
  for (const double level : {1e9, -1e9, 1e38, -1e38}) {
    for (const bool sink : {false, true}) {
      SCOPED_TRACE(level);
      Random random(3);
      SecondCase second{.c = case_of(random, DType::f32, {.lead = {1}, .queries = 5, .keys = 70, .qk_width = 8, .v_width = 8}), .tangents = {}, .forward = {}};
      AttentionCase& c = second.c;
      Tensor bias(DType::f32, {5, 70});
      fill(bias, level);
      c.options.bias = c.keep(std::move(bias));
      if (sink) c.options.sink = c.keep(Tensor::of<float>({1}, {static_cast<float>(level)}));
      c.options.backend = &find_backend("cpu");
      second.tangents = draw_tangents(random, c);
      second.tangents.q = second.tangents.k = {};
      // With a bias of this size <q,k> is lost in rounding. Every key and the sink then have the same attention weight, as in a problem whose scores are all 0.
      SecondCase plain{.c = case_of(random, DType::f32, c.sizes), .tangents = second.tangents, .forward = {}};
      plain.c.k = c.k, plain.c.v = c.v, plain.c.d_out = c.d_out, plain.c.options = c.options;
      plain.c.q = plain.c.keep(Tensor(DType::f32, c.q.shape()));
      plain.c.options.bias = plain.c.keep(Tensor(DType::f32, {5, 70}));
      if (sink) plain.c.options.sink = plain.c.keep(Tensor(DType::f32, {1}));
      second.run_forward(), plain.run_forward();
      const SecondOutputs o = second.make_outputs(), expected = plain.make_outputs();
      second.jvp(o), plain.jvp(expected);
      EXPECT_TRUE(near(o.out_tangent, expected.out_tangent, 1e-5));
      EXPECT_TRUE(near(o.lse_tangent, expected.lse_tangent, 1e-5));
      second.backward_backward(o);
      for (const auto& [name, view] : o.list()) {
        for (const double x : view ? to_doubles(view) : std::vector<double>()) EXPECT_TRUE(std::isfinite(x)) << name;
      }
    }
  }
}

// An empty row gives zeros even if its query, its gradient or the tangents of the keys are NaN. A sink logit that is NaN does not change these zeros.
TEST(CpuSdpaSecond, EmptyRowsGiveZerosEvenIfTheirInputsAreNaN) {
  for (const double sink : {0.0, kNaN}) {
    for (const bool masked : {false, true}) {
      SCOPED_TRACE(testing::Message() << "sink " << sink << ", masked " << masked);
      Random random(5);
      SecondCase second{.c = case_of(random, DType::f32, {.lead = {1}, .queries = 1, .keys = 3, .qk_width = 2, .v_width = 2}), .tangents = {}, .forward = {}};
      AttentionCase& c = second.c;
      const auto filled = [&](const Shape& shape, double value) {
        Tensor tensor(DType::f32, shape);
        fill(tensor, value);
        return c.keep(std::move(tensor));
      };
      c.options.sink = filled({1}, sink);
      if (masked) {
        c.options.mask.attend = c.keep(Tensor(DType::boolean, {1, 3}));
      } else {
        c.options.bias = filled({1, 3}, -kInfinity);
      }
      c.options.backend = &find_backend("cpu");
      second.run_forward();
      c.d_out = filled(c.sizes.out(), kNaN);
      second.tangents = {.q = filled(c.sizes.q(), kNaN), .k = filled(c.sizes.k(), kNaN), .v = filled(c.sizes.v(), kNaN)};
      const SecondOutputs o = second.make_outputs();
      second.jvp(o), second.backward_backward(o);
      for (const auto& [name, view] : o.list()) {
        for (const double x : view && std::string_view(name) != "lse_tangent" ? to_doubles(view) : std::vector<double>()) EXPECT_EQ(x, 0) << name;
      }
    }
  }
}

// Products of 2^23 and small integers are exact in float32. The scale is no power of two, so a kernel that rounded each score before it subtracts the largest
// score would be off by up to 0.06.
TEST(CpuSdpaSecond, LargeProductsAreExact) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed + 10'000'000);
    SecondCase second{.c = case_of(random, DType::f32, {.lead = {2}, .group = 2, .queries = 7, .keys = 300, .qk_width = 32, .v_width = 8}), .tangents = {}, .forward = {}};
    AttentionCase& c = second.c;
    const auto integers = [&](const ConstTensorView& like, double first) -> ConstTensorView {
      Tensor tensor(DType::f32, like.shape());
      for (std::int64_t i = 0; i < tensor.numel(); ++i) tensor.data<float>()[i] = static_cast<float>(random.integer(-1, 1));
      fill(tensor.view().slice(-1, 0, 1), first);
      return c.keep(std::move(tensor));
    };
    c.q = integers(c.q, 2048), c.k = integers(c.k, 4096);
    c.options.backend = &find_backend("cpu");
    second.tangents = {.q = integers(c.q, 0), .k = integers(c.k, 0), .v = c.keep(random.tensor(DType::f32, c.sizes.v()))};
    second.run_forward();
    SecondCase wide = in_float64(second);
    const SecondOutputs expected = wide.make_outputs();
    wide.jvp(expected), wide.backward_backward(expected);
    for_each_instruction_set(seed, [&] {
      const SecondOutputs o = second.make_outputs();
      second.jvp(o), second.backward_backward(o);
      const auto actual = o.list(), exact = expected.list();
      for (std::size_t i = 0; i < actual.size(); ++i) {
        if (!actual[i].second) continue;
        ConstTensorView a = actual[i].second, e = exact[i].second;
        // The first column of d_q and d_k is not compared: it is a sum of terms of size 4096 d_x that cancel, so it is too inexact.
        if (a.extent(-1) == 32) a = a.slice(-1, 1, 32), e = e.slice(-1, 1, 32);
        EXPECT_TRUE(near_relative(a, e, 1e-4)) << actual[i].first;
      }
    });
    if (HasFailure()) return;
  }
}

// Gradients must not change if other gradients are not requested.
TEST(CpuSdpaSecond, GradientsThatAreNotWantedChangeNoOther) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed + 9'000'000);
    SecondCase second = draw_second(random, seed);
    const SecondOutputs all = second.make_outputs();
    second.backward_backward(all);
    for (int wanted = 0; wanted < 4; ++wanted) {
      SecondOutputs o = second.make_outputs();
      AttentionOutputs& d = o.gradients;
      if (wanted != 0) d.d_q = {};
      if (wanted != 1) d.d_k = {};
      if (wanted != 2) d.d_v = {};
      if (wanted != 3) o.d_d_out = {};
      d.d_bias = d.d_sink = d.d_relative_bias = {};
      second.backward_backward(o);
      for (const auto& [one, other] : {std::pair(d.d_q, all.gradients.d_q), {d.d_k, all.gradients.d_k}, {d.d_v, all.gradients.d_v}, {o.d_d_out, all.d_d_out}}) {
        if (one) {
          EXPECT_TRUE(same_bits(one, other)) << wanted;
        }
      }
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace polyhead::test
