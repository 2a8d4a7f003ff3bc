#include "support/second_kernel_case.h"

namespace polyhead::test {

SecondTolerances::SecondTolerances(const SecondCase& s, const Tolerances& first) {
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
  // `pair` bounds the error of d_score, and `g` bounds the error of g (docs/maths.md, section 3a)
  const double pair = share * (2 * tangent * w + w_tangent), g = share * w;
  const double curved = c.options.softcap > 0 ? pair + g * moved * 2 / c.options.softcap : pair;
  d_bias = pair;
  d_q = scale * (curved * k + g * largest(s.tangents.k));
  d_k = scale * (curved * q + g * largest(s.tangents.q));
  d_v = share * kept * tangent * d;
  d_relative_bias = pair * reach * std::sqrt(static_cast<double>(std::max<std::int64_t>(1, numel(c.sizes.pairs()))));
  d_sink = pair * std::sqrt(static_cast<double>(std::max<std::int64_t>(1, numel(c.sizes.lse()))));
}

SecondCase in_float64(const SecondCase& narrow) {
  SecondCase wide{.c = in_float64(narrow.c), .tangents = {}, .forward = {}};
  const auto widened = [&](const ConstTensorView& x) { return x ? ConstTensorView(wide.c.keep(Tensor::copy_of(x, DType::f64))) : x; };
  const SdpaTangents& t = narrow.tangents;
  wide.tangents = {.q = widened(t.q), .k = widened(t.k), .v = widened(t.v), .bias = widened(t.bias), .relative_bias = widened(t.relative_bias), .sink = widened(t.sink)};
  wide.c.options.backend = &find_backend("reference");
  wide.run_forward();
  return wide;
}

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

}  // namespace polyhead::test
