// Tests score rules of the caller (docs/maths.md, section 2). Compares the backend `reference` with built-in options and with central differences, and the
// kernels with the reference.
#include "polyhead/score_rule.h"

#include <gmock/gmock.h>

#include "polyhead/maps.h"
#include "polyhead/score_function.h"
#include "polyhead/sdpa_derivatives.h"
#include "support/kernel_case.h"
#include "support/thread_count.h"

namespace polyhead::test {
namespace {

const auto kCap = score_rule([](auto score, auto, auto) { return score::tanh(score * 0.5F) * 2.0F; },
                             [](auto score, auto, auto) {
                               const auto t = score::tanh(score * 0.5F);
                               return 1.0F - t * t;
                             });

// A rule that depends on every index that a tile has: query, key, head and sequence.
const auto kDistances = score_rule([](auto score, auto q, auto k, const ScoreTile& tile) {
  return score * 0.75F + score::tanh((k - q) * 0.25F) * static_cast<float>(tile.head % 3 + tile.batch % 2);
}, [](auto score, auto, auto, const ScoreTile&) { return score * 0 + 0.75F; });

// Calls f(x, offset) for every element x = tile.scores[offset] of a tile. In a rule's backward function these elements are gradients of scores.
void for_each_score(const ScoreTile& tile, const auto& f) {
  for (std::int64_t i = 0; i < tile.rows * tile.keys; ++i) {
    const std::int64_t at = i / tile.keys * tile.row_stride + i % tile.keys;
    tile.float64 ? f(static_cast<double*>(tile.scores)[at], at) : f(static_cast<float*>(tile.scores)[at], at);
  }
}

// A rule written without score_function.h: the new score is score + a[n] score^2 + b[n] (s - t) / 16. It also computes the gradients of a and b.
struct Quadratic {
  double a = 0.25, b = 0.5;

  template <class T>
  static void forward(const ScoreTile& tile, const Quadratic& self) {
    for_each<T>(tile, [&](std::int64_t at, double distance) {
      T& x = static_cast<T*>(tile.scores)[at];
      x += static_cast<T>(self.a) * x * x + static_cast<T>(self.b * distance);
    });
  }
  template <class T>
  static void backward(const ScoreTile& tile, const T* before, double* sums, const Quadratic& self) {
    for_each<T>(tile, [&](std::int64_t at, double distance) {
      T& d = static_cast<T*>(tile.scores)[at];
      const T x = before[at];
      if (sums != nullptr) sums[0] += static_cast<double>(d) * static_cast<double>(x * x), sums[1] += static_cast<double>(d) * distance;
      d *= 1 + 2 * static_cast<T>(self.a) * x;
    });
  }
  template <class T, class F>
  static void for_each(const ScoreTile& tile, const F& f) {
    for (std::int64_t i = 0; i < tile.rows; ++i) {
      for (std::int64_t j = 0; j < tile.keys; ++j) f(i * tile.row_stride + j, static_cast<double>(tile.first_key + j - tile.first_query - i) / 16);
    }
  }
  ScoreRule rule() const {
    ScoreRule rule;
    rule.forward = [](const ScoreTile& tile, const void* data) {
      const auto& self = *static_cast<const Quadratic*>(data);
      tile.float64 ? forward<double>(tile, self) : forward<float>(tile, self);
    };
    rule.backward = [](const ScoreTile& tile, const void* before, double* sums, const void* data) {
      const auto& self = *static_cast<const Quadratic*>(data);
      tile.float64 ? backward(tile, static_cast<const double*>(before), sums, self) : backward(tile, static_cast<const float*>(before), sums, self);
    };
    rule.data = this, rule.gradient_count = 2;
    return rule;
  }
};

const Quadratic kQuadratic;

ScoreRule drawn_rule(std::uint64_t seed) { return seed % 3 == 0 ? ScoreRule(kCap) : seed % 3 == 1 ? ScoreRule(kDistances) : kQuadratic.rule(); }

void backward_with_sums(const AttentionCase& c, const AttentionOutputs& o, TensorView sums) {
  sdpa_backward({.q = c.q, .k = c.k, .v = c.v, .out = o.out, .lse = o.lse, .d_out = c.d_out, .d_q = o.d_q, .d_k = o.d_k, .d_v = o.d_v, .d_bias = o.d_bias,
                 .d_relative_bias = o.d_relative_bias, .d_sink = o.d_sink, .d_score_rule = sums},
                c.options);
}

AttentionSizes small() { return {.lead = {2}, .kv_heads = 2, .group = 2, .queries = 7, .keys = 9, .qk_width = 5, .v_width = 4}; }

TEST(ScoreRules, EqualTheOptionsThatComputeTheSameScores) {
  Random random(1);
  for (const Backend* const backend : backends()) {
    AttentionCase plain = case_of(random, DType::f64, small(), backend), ruled = case_of(random, DType::f64, small(), backend);
    ruled.q = plain.q, ruled.k = plain.k, ruled.v = plain.v, ruled.d_out = plain.d_out;
    plain.options.softcap = 2, ruled.options.score_rule = kCap;
    for (const bool causal : {false, true}) {
      if (causal) plain.options.mask.causal = ruled.options.mask.causal = Causal::bottom_right();
      const AttentionOutputs a = plain.make_outputs(), b = ruled.make_outputs();
      plain.run(a), ruled.run(b);
      for (const auto& [name, view] : a.list()) {
        if (!view) continue;
        for (const auto& [other_name, other] : b.list()) {
          if (std::string(name) != other_name) continue;
          EXPECT_TRUE(near(other, Tensor::copy_of(view), 1e-13)) << backend << " " << name;
        }
      }
    }
  }
}

TEST(ScoreRules, AreAppliedBeforeSoftcapBiasAndMasks) {
  Random random(2);
  AttentionCase c = case_of(random, DType::f64, small());
  const Tensor bias = random.tensor(DType::f64, {9});
  c.options.bias = bias, c.options.softcap = 3, c.options.score_rule = kQuadratic.rule(), c.options.mask.causal = Causal::top_left();
  for (const Backend* const backend : backends()) {
    c.options.backend = backend;
    Tensor scaled(DType::f64, c.sizes.pairs()), capped(DType::f64, c.sizes.pairs()), score(DType::f64, c.sizes.pairs());
    attention_map(c.maps(), scaled, c.options, MapValue::scaled_score), attention_map(c.maps(), capped, c.options, MapValue::capped_score);
    attention_map(c.maps(), score, c.options, MapValue::score);
    for (std::int64_t i = 0; i < scaled.numel(); ++i) {
      const std::int64_t t = i / 9 % 7, s = i % 9;
      const double x = scaled.data<double>()[i], ruled = x + 0.25 * x * x + 0.5 * static_cast<double>(s - t) / 16, wanted = 3 * std::tanh(ruled / 3);
      EXPECT_NEAR(capped.data<double>()[i], wanted, 1e-12);
      if (s <= t) {
        EXPECT_NEAR(score.data<double>()[i], wanted + bias.data<double>()[s], 1e-12);
      } else {
        EXPECT_EQ(score.data<double>()[i], -kInfinity);
      }
    }
  }
}

TEST(ScoreRules, GradientsAreCentralDifferences) {
  for (const Backend* const backend : backends()) {
    Random random(3);
    AttentionCase c = case_of(random, DType::f64, small(), backend);
    Quadratic rule;
    c.options.score_rule = rule.rule(), c.options.softcap = 4, c.options.dropout = {.p = 0.2, .seed = 5}, c.options.mask.causal = Causal::bottom_right();
    const AttentionOutputs o = c.make_outputs();
    c.forward(o);
    Tensor sums(DType::f64, {4, 2});
    backward_with_sums(c, o, sums);
    const auto loss = [&] {
      const AttentionOutputs moved = c.make_forward_outputs();
      c.forward(moved);
      const std::vector<double> out = to_doubles(moved.out), d_out = to_doubles(c.d_out);
      double sum = 0;
      for (std::size_t i = 0; i < out.size(); ++i) sum += out[i] * d_out[i];
      return sum;
    };
    const auto slope = [&](double& x) {
      const double old = x, step = 1e-6;
      x = old + step;
      const double above = loss();
      x = old - step;
      const double below = loss();
      x = old;
      return (above - below) / (2 * step);
    };
    const auto expect_slopes = [&](ConstTensorView& input, const TensorView& gradient) {
      Tensor copy = Tensor::copy_of(input);
      input = copy;
      const std::vector<double> found = to_doubles(gradient);
      for (std::int64_t i = 0; i < copy.numel(); i += 7) EXPECT_NEAR(found[static_cast<std::size_t>(i)], slope(copy.data<double>()[i]), 1e-7);
      input = c.keep(std::move(copy));
    };
    expect_slopes(c.q, o.d_q), expect_slopes(c.k, o.d_k), expect_slopes(c.v, o.d_v);
    double of_a = 0, of_b = 0;
    for (int n = 0; n < 4; ++n) of_a += sums.data<double>()[2 * n], of_b += sums.data<double>()[2 * n + 1];
    EXPECT_NEAR(of_a, slope(rule.a), 1e-6) << backend_name(*backend);
    EXPECT_NEAR(of_b, slope(rule.b), 1e-6) << backend_name(*backend);
  }
}

TEST(ScoreRules, KernelsAreTheReference) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed + 7000);
    AttentionCase c = draw_kernel_case(random, seed);
    c.options.score_rule = drawn_rule(seed);
    AttentionCase wide = in_float64(c);
    const std::int64_t gradients = c.options.score_rule.gradient_count;
    const AttentionOutputs forward = reference_forward(c), in_full = reference_forward(wide), expected = wide.make_outputs();
    Tensor wanted_sums(DType::f64, {c.sizes.heads(), gradients}), sums(DType::f64, wanted_sums.shape());
    wide.options.backend = &find_backend("reference");
    copy(forward.out, expected.out), copy(forward.lse, expected.lse);
    backward_with_sums(wide, expected, wanted_sums);
    c.options.precision = Precision::exact;
    Tolerances t(c);
    // The square of a score and the derivative of the square enlarge rounding errors.
    t.relative *= 4, t.out *= 4, t.lse *= 4, t.d_q *= 4, t.d_k *= 4, t.d_v *= 4, t.d_bias *= 4;
    for_each_instruction_set(seed, [&] {
      const AttentionOutputs o = c.make_outputs(&random);
      c.forward(o);
      expect_forward_near(o, in_full, t);
      copy(forward.out, o.out), copy(forward.lse, o.lse);
      backward_with_sums(c, o, sums);
      expect_gradients_near(o, expected, t);
      const double pairs = std::sqrt(static_cast<double>(std::max<std::int64_t>(1, numel(c.sizes.pairs()))));
      EXPECT_TRUE(near(sums, wanted_sums, t.d_bias * pairs * (4 + largest_distance(c) / 16) + t.relative * largest_magnitude(wanted_sums))) << "sums";
    });
    EXPECT_TRUE(padding_is_intact(c.strided()));
    if (HasFailure()) return;
  }
}

TEST(ScoreRules, MapsAreTheReference) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed + 8000);
    AttentionCase c = draw_kernel_case(random, seed);
    c.options.score_rule = drawn_rule(seed);
    for (const MapValue value : {MapValue::scaled_score, MapValue::capped_score, MapValue::probability, MapValue::dropped}) {
      const Tensor wanted = reference_map(c, c.maps(), value);
      for_each_instruction_set(seed, [&] {
        Tensor map(DType::f64, c.sizes.pairs());
        attention_map(c.maps(), map, c.options, value);
        EXPECT_TRUE(near(map, wanted, Tolerances(c).relative * 8 * std::max(1.0, largest_magnitude(wanted)))) << static_cast<int>(value);
      });
    }
    if (HasFailure()) return;
  }
}

// All documents and sequences add to the same gradients of the rule. The order of these additions must not depend on the threads.
TEST(ScoreRules, SameBitsForAnyNumberOfThreads) {
  const ThreadCount restored;
  for (const bool documents : {false, true}) {
    Random random(9);
    AttentionCase c = case_of(random, DType::f32, {.lead = {3}, .kv_heads = 2, .group = 2, .queries = 300, .keys = 300, .qk_width = 20, .v_width = 12}, &find_backend("cpu"));
    c.options.score_rule = kQuadratic.rule();
    const Tensor offsets = Tensor::of<std::int64_t>({4}, {0, 100, 170, 300});
    if (documents) c.options.mask.query_offsets = offsets;
    for_each_instruction_set([&] {
      Tensor sums[3];
      AttentionOutputs runs[3];
      for (int i = 0; i < 3; ++i) {
        set_num_threads(std::array{1, 2, 5}[static_cast<std::size_t>(i)]);
        runs[i] = c.make_outputs(), sums[i] = Tensor(DType::f64, {4, 2});
        c.forward(runs[i]);
        backward_with_sums(c, runs[i], sums[i]);
        expect_same_bits(runs[i], runs[0]);
        EXPECT_TRUE(same_bits(sums[i], sums[0]));
      }
      // Requesting the rule's gradients changes the schedule. This must not change the other gradients.
      const AttentionOutputs without = c.make_outputs();
      c.run(without);
      expect_same_bits(without, runs[0]);
    });
  }
}

// The rule is sqrt. Its derivative is infinite at 0, and it is NaN for negative scores. In masked pairs neither may have an effect.
TEST(ScoreRules, MaskedPairsHaveNoEffect) {
  ScoreRule root;
  root.forward = [](const ScoreTile& tile, const void*) { for_each_score(tile, [](auto& x, std::int64_t) { x = std::sqrt(x); }); };
  root.backward = [](const ScoreTile& tile, const void* before, double*, const void*) {
    for_each_score(tile, [&]<class T>(T& d, std::int64_t at) { d *= T{0.5} / std::sqrt(static_cast<const T*>(before)[at]); });
  };
  for (const Backend* const backend : backends()) {
    Random random(4);
    AttentionCase c = case_of(random, DType::f32, {.queries = 40, .keys = 70, .qk_width = 6, .v_width = 5}, backend);
    const TensorView q = c.keep(random.tensor(DType::f32, c.sizes.q(), 0.5, 1)), k = c.keep(random.tensor(DType::f32, c.sizes.k(), 0.5, 1));
    fill(k.slice(-2, 3, 4), 0), fill(k.slice(-2, 20, 21), -1), fill(k.slice(-2, 68, 69), kNaN);
    Tensor attend(DType::boolean, {70});
    for (std::int64_t s = 0; s < 70; ++s) attend.data<bool>()[s] = s != 3 && s != 20 && s != 68;
    c.q = q, c.k = k, c.options.mask.attend_keys = attend, c.options.score_rule = root;
    const AttentionOutputs o = c.make_outputs();
    c.run(o);
    for (const auto& [name, view] : o.list()) {
      for (const double x : view ? to_doubles(view) : std::vector<double>()) EXPECT_TRUE(std::isfinite(x)) << backend << " " << name;
    }
    for (const double x : to_doubles(ConstTensorView(o.d_k).slice(-2, 68, 69))) EXPECT_EQ(x, 0);
  }
}

// The rule score / 2. Its backward function relies on the flags: without keeps_zeros it changes gradients of 0 to NaN, and with reads_before it gives NaN if an
// old score is not finite. Its gradient is the sum of d_score.
template <bool keeps_zeros, bool reads_before>
ScoreRule half_rule() {
  ScoreRule rule;
  rule.keeps_zeros = keeps_zeros, rule.reads_before = reads_before, rule.gradient_count = 1;
  rule.forward = [](const ScoreTile& tile, const void*) { for_each_score(tile, [](auto& x, std::int64_t) { x *= 0.5F; }); };
  rule.backward = [](const ScoreTile& tile, const void* before, double* sums, const void*) {
    for_each_score(tile, [&]<class T>(T& d, std::int64_t at) {
      if (keeps_zeros && d == 0) return;
      // With reads_before, every old score that the backward function gets is finite: masked pairs get 0.
      if (reads_before && !std::isfinite(static_cast<const T*>(before)[at])) d = std::numeric_limits<T>::quiet_NaN();
      if (sums != nullptr) sums[0] += static_cast<double>(d);
      d = d == 0 ? std::numeric_limits<T>::quiet_NaN() : d * T{0.5};
    });
  };
  return rule;
}

TEST(ScoreRules, MayPromiseEachOfKeepsZerosAndReadsBefore) {
  for (const Backend* const backend : backends()) {
    Random random(8);
    AttentionCase c = case_of(random, DType::f32, {.queries = 40, .keys = 70, .qk_width = 6, .v_width = 5}, backend);
    const TensorView k = c.keep(random.tensor(DType::f32, c.sizes.k(), 0.5, 1));
    fill(k.slice(-2, 20, 21), kNaN);
    Tensor attend(DType::boolean, {70});
    for (std::int64_t s = 0; s < 70; ++s) attend.data<bool>()[s] = s != 20;
    c.k = k, c.options.mask.attend_keys = attend;
    for_each_instruction_set([&] {
      std::vector<AttentionOutputs> found;
      std::vector<double> sums;
      for (const ScoreRule& rule : {half_rule<false, true>(), half_rule<false, false>(), half_rule<true, true>(), half_rule<true, false>()}) {
        c.options.score_rule = rule;
        found.push_back(c.make_outputs());
        c.forward(found.back());
        Tensor sum(DType::f64, {1, 1});
        backward_with_sums(c, found.back(), sum);
        sums.push_back(sum.data<double>()[0]);
        expect_same_bits(found.back(), found.front());
        for (const double x : to_doubles(found.back().d_k)) EXPECT_TRUE(std::isfinite(x)) << backend_name(*backend);
        EXPECT_EQ(sums.back(), sums.front()) << backend_name(*backend);
      }
      EXPECT_TRUE(std::isfinite(sums[0])) << backend_name(*backend);
    });
  }
}

TEST(ScoreRules, AreRefusedByName) {
  Random random(5);
  AttentionCase c = case_of(random, DType::f64, small());
  const AttentionOutputs o = c.make_outputs();
  const auto forward_only = score_rule([](auto score, auto, auto) { return score * 2; });
  c.options.score_rule = forward_only;
  c.forward(o);
  EXPECT_THAT(error_message([&] { c.backward(o); }), testing::HasSubstr("sdpa_backward: score_rule has no backward function"));
  EXPECT_THAT(explain({.q = c.q, .k = c.k, .v = c.v, .out = o.out}, c.options), testing::HasSubstr("score rule: a function of the caller, without a backward function"));
  c.options.score_rule = kQuadratic.rule();
  EXPECT_THAT(explain({.q = c.q, .k = c.k, .v = c.v, .out = o.out}, c.options), testing::HasSubstr("score rule: a function of the caller, with 2 gradients for each head"));
  Tensor wrong(DType::f64, {4, 3});
  EXPECT_THAT(error_message([&] { backward_with_sums(c, o, wrong); }), testing::HasSubstr("d_score_rule is [4,3]; it must be [N,score_rule.gradient_count] = [4,2]"));
  EXPECT_THAT(error_message([&] { sdpa_jvp({.q = c.q, .k = c.k, .v = c.v, .out = o.out, .lse = o.lse, .out_tangent = o.d_q}, c.options); }), testing::HasSubstr("sdpa_jvp: score_rule is given"));
  EXPECT_THAT(error_message([&] { sdpa_backward_backward({.q = c.q, .k = c.k, .v = c.v, .out = o.out, .lse = o.lse, .d_out = c.d_out}, c.options); }),
              testing::HasSubstr("sdpa_backward_backward: score_rule is given"));
  c.options.score_rule = {};
  EXPECT_THAT(error_message([&] { backward_with_sums(c, o, wrong); }), testing::HasSubstr("d_score_rule is given without a score_rule"));
}

}  // namespace
}  // namespace polyhead::test
