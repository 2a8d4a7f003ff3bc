// Forward mode and the gradient of the backward pass by the kernels, beside the reference.
#include "support/kernel_case.h"
#include "support/last_piece_first.h"
#include "support/second_derivatives.h"

namespace polyhead::test {
namespace {

// The same tangents in float64.
SecondCase in_float64(const SecondCase& narrow) {
  SecondCase wide{.c = in_float64(narrow.c), .tangents = {}, .forward = {}};
  const auto widened = [&](const ConstTensorView& x) { return x ? ConstTensorView(wide.c.keep(Tensor::copy_of(x, DType::f64))) : x; };
  const SdpaTangents& t = narrow.tangents;
  wide.tangents = {.q = widened(t.q), .k = widened(t.k), .v = widened(t.v), .bias = widened(t.bias), .relative_bias = widened(t.relative_bias), .sink = widened(t.sink)};
  wide.c.options.backend = &find_backend("reference");
  wide.run_forward();
  return wide;
}

// How far a result may be from the exact one: the share of Tolerances of the largest that its terms can be.
struct SecondTolerances {
  double out, lse, d_q, d_k, d_v, d_bias, d_sink, d_relative_bias;

  SecondTolerances(const SecondCase& s, const Tolerances& first) {
    const AttentionCase& c = s.c;
    const auto largest = [](const ConstTensorView& x) { return x ? largest_magnitude(x) : 0.0; };
    const double width = static_cast<double>(std::max<std::int64_t>(1, c.sizes.qk_width)), v_width = static_cast<double>(std::max<std::int64_t>(1, c.sizes.v_width));
    const double scale = std::abs(c.options.scale.value_or(1 / std::sqrt(width)));
    const double q = largest(c.q), k = largest(c.k), v = largest(c.v), d = largest(c.d_out), kept = kept_factor(c.options.dropout);
    const double reach = c.options.relative_bias.slopes ? largest_distance(c) : 1;
    const double moved = scale * width * (largest(s.tangents.q) * k + q * largest(s.tangents.k));  // |x'|
    const double tangent = moved + largest(s.tangents.bias) + largest(s.tangents.relative_bias) * reach + largest(s.tangents.sink);  // |score'|
    const double share = first.relative, w = kept * d * v * v_width, w_tangent = kept * d * largest(s.tangents.v) * v_width;
    lse = first.lse * tangent;
    out = share * kept * (tangent * v + largest(s.tangents.v));
    const double pair = share * (2 * tangent * w + w_tangent), g = share * w;  // of d_score and of g
    const double curved = c.options.softcap > 0 ? pair + g * moved * 2 / c.options.softcap : pair;
    d_bias = pair;
    d_q = scale * (curved * k + g * largest(s.tangents.k));
    d_k = scale * (curved * q + g * largest(s.tangents.q));
    d_v = share * kept * tangent * d;
    d_relative_bias = pair * reach * std::sqrt(static_cast<double>(std::max<std::int64_t>(1, numel(c.sizes.pairs()))));
    d_sink = pair * std::sqrt(static_cast<double>(std::max<std::int64_t>(1, numel(c.sizes.lse()))));
  }
};

void expect_near(const SecondOutputs& actual, const SecondOutputs& expected, const SecondTolerances& t, double relative) {
  const auto check = [&](const char* name, const TensorView& a, const TensorView& e, double least) {
    ASSERT_EQ(static_cast<bool>(a), static_cast<bool>(e)) << name;
    if (a) {
      EXPECT_TRUE(near(a, e, relative * largest_magnitude(e) + least)) << name;
    }
  };
  check("out_tangent", actual.out_tangent, expected.out_tangent, t.out);
  check("lse_tangent", actual.lse_tangent, expected.lse_tangent, t.lse);
  check("d_d_out", actual.d_d_out, expected.d_d_out, t.out);
  const AttentionOutputs &a = actual.gradients, &e = expected.gradients;
  check("d_q", a.d_q, e.d_q, t.d_q), check("d_k", a.d_k, e.d_k, t.d_k), check("d_v", a.d_v, e.d_v, t.d_v);
  check("d_bias", a.d_bias, e.d_bias, t.d_bias), check("d_sink", a.d_sink, e.d_sink, t.d_sink);
  check("d_relative_bias", a.d_relative_bias, e.d_relative_bias, t.d_relative_bias);
}

SecondCase draw_second(Random& random, std::uint64_t seed) {
  SecondCase second{.c = draw_kernel_case(random, seed), .tangents = {}, .forward = {}};
  second.c.options.precision = Precision::exact;
  second.tangents = draw_tangents(random, second.c);
  second.run_forward();
  return second;
}

TEST(CpuSdpaSecond, RandomProblemsAgreeWithTheReference) {
  for (std::uint64_t seed = 0; seed < 480; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed + 6'000'000), layout(seed + 1'000'000);
    SecondCase second = draw_second(random, seed);
    SecondCase wide = in_float64(second);
    const SecondOutputs expected = wide.make_outputs();
    wide.jvp(expected), wide.backward_backward(expected);
    const Tolerances first(second.c);
    const SecondTolerances tolerances(second, first);
    for_each_instruction_set([&] {
      const SecondOutputs o = second.make_outputs(&layout);
      second.jvp(o), second.backward_backward(o);
      expect_near(o, expected, tolerances, first.relative);
      EXPECT_TRUE(padding_is_intact(second.c.strided()));
    });
    if (HasFailure()) return;
  }
}

// A NaN reaches what the formula says and nothing else: the reference says where.
TEST(CpuSdpaSecond, NaNReachesWhatUsesIt) {
  int reached = 0;
  for (std::uint64_t seed = 0; seed < 240; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed + 7'000'000);
    SecondCase second = draw_second(random, seed);
    AttentionCase& c = second.c;
    c.options.dropout = {};  // the kernels replace what is dropped, the reference multiplies it by 0
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
    for_each_instruction_set([&] {
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
    for_each_instruction_set([&] {
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

// Scores far beyond what the rounding of lse allows: 2^-24 of 1e9 is 60.
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
      // Beside such a bias the scores vanish in rounding: every key, and the sink, weighs the same, as in a problem whose scores are 0.
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

// An empty row gives zeros, whatever NaN its query, its gradient and the keys' tangents hold; a NaN sink changes none of them.
TEST(CpuSdpaSecond, EmptyRowsGiveZerosBesideNaN) {
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

// Products of 2^23 and small integers are exact in float32; the scale is no power of two, so each score is rounded by up to 0.06 before the largest is subtracted.
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
    for_each_instruction_set([&] {
      const SecondOutputs o = second.make_outputs();
      second.jvp(o), second.backward_backward(o);
      const auto actual = o.list(), exact = expected.list();
      for (std::size_t i = 0; i < actual.size(); ++i) {
        if (!actual[i].second) continue;
        ConstTensorView a = actual[i].second, e = exact[i].second;
        // The first column of d_q and d_k is a sum of terms of 4096 d_x that cancel.
        if (a.extent(-1) == 32) a = a.slice(-1, 1, 32), e = e.slice(-1, 1, 32);
        EXPECT_TRUE(near_relative(a, e, 1e-4)) << actual[i].first;
      }
    });
    if (HasFailure()) return;
  }
}

// What is not asked for does not change what is.
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
