#include "support/second_derivatives.h"

namespace polyhead::test {

void SecondCase::run_forward() {
  forward = c.make_outputs();
  c.forward(forward);
}

SecondOutputs SecondCase::make_outputs(Random* random) {
  SecondOutputs o{.out_tangent = {}, .lse_tangent = {}, .d_d_out = {}, .gradients = c.make_outputs(random)};
  o.out_tangent = o.gradients.out;  // reuse the memory of gradients.out, because no pass of these tests writes `out` there
  o.lse_tangent = o.gradients.lse;
  o.gradients.out = o.gradients.lse = {};
  o.d_d_out = random ? c.keep(random->empty_strided(c.dtype, c.sizes.out())) : c.keep(Tensor(c.dtype, c.sizes.out()));
  return o;
}

void SecondCase::jvp(const SecondOutputs& o) const {
  sdpa_jvp({.q = c.q, .k = c.k, .v = c.v, .out = forward.out, .lse = forward.lse, .tangents = tangents, .out_tangent = o.out_tangent, .lse_tangent = o.lse_tangent},
           c.options);
}

void SecondCase::backward_backward(const SecondOutputs& o) const {
  sdpa_backward_backward({.q = c.q,
                          .k = c.k,
                          .v = c.v,
                          .out = forward.out,
                          .lse = forward.lse,
                          .d_out = c.d_out,
                          .d_gradients = tangents,
                          .d_q = o.gradients.d_q,
                          .d_k = o.gradients.d_k,
                          .d_v = o.gradients.d_v,
                          .d_d_out = o.d_d_out,
                          .d_bias = o.gradients.d_bias,
                          .d_relative_bias = o.gradients.d_relative_bias,
                          .d_sink = o.gradients.d_sink},
                         c.options);
}

SdpaTangents draw_tangents(Random& random, AttentionCase& c, double magnitude) {
  const auto draw = [&](ConstTensorView of) -> ConstTensorView {
    if (!of || random.integer(0, 3) == 0) return {};
    return c.keep(random.strided(of.dtype(), of.shape(), -magnitude, magnitude));
  };
  SdpaTangents t{.q = draw(c.q), .k = draw(c.k), .v = draw(c.v)};
  t.bias = draw(c.options.bias), t.relative_bias = draw(c.options.relative_bias.parameter()), t.sink = draw(c.options.sink);
  return t;
}

FullMatrices moved(const FullMatrices& m, const AttentionCase& c, const SdpaTangents& tangents, Real step) {
  FullMatrices result = m;
  const auto move = [&](Matrix& to, const Matrix& along) {
    for (std::size_t i = 0; i < along.size(); ++i) to[i] += step * along[i];
  };
  if (tangents.q) move(result.q, to_matrix(tangents.q));
  if (tangents.k) move(result.k, to_matrix(tangents.k));
  if (tangents.v) move(result.v, to_matrix(tangents.v));
  if (tangents.bias) move(result.bias, to_matrix(tangents.bias.expand(c.sizes.pairs())));
  if (tangents.sink) move(result.sink, to_matrix(sink_rows(tangents.sink).expand(c.sizes.lse())));
  if (tangents.relative_bias) {  // the bias is linear in slopes and table, so `step` times the bias of their tangent is added
    SdpaOptions options = c.options;
    (options.relative_bias.slopes ? options.relative_bias.slopes : options.relative_bias.table) = tangents.relative_bias;
    move(result.bias, full_matrices(c.q, c.k, c.v, c.d_out, options).bias);
  }
  return result;
}

FullResults naive_slopes(const SecondCase& second) {
  constexpr Real kStep = 1e-4L;
  const AttentionCase& c = second.c;
  const FullMatrices m = full_matrices(c.q, c.k, c.v, c.d_out, c.options);
  std::array<FullResults, 4> at;
  const std::array<Real, 4> steps{2, 1, -1, -2}, factors{-1, 8, -8, 1};
  for (std::size_t i = 0; i < at.size(); ++i) at[i] = naive_attention(moved(m, c, second.tangents, steps[i] * kStep));
  const auto slope = [&](Matrix FullResults::*member) {
    Matrix result((at[0].*member).size(), 0);
    for (std::size_t j = 0; j < result.size(); ++j) {
      if (std::isinf((at[0].*member)[j])) continue;  // the lse of an empty row is -infinity for every step, so its tangent is 0
      for (std::size_t i = 0; i < at.size(); ++i) result[j] += factors[i] / (12 * kStep) * (at[i].*member)[j];
    }
    return result;
  };
  FullResults r;
  for (Matrix FullResults::*member : {&FullResults::out, &FullResults::lse, &FullResults::d_q, &FullResults::d_k, &FullResults::d_v, &FullResults::d_score, &FullResults::d_sink})
    r.*member = slope(member);
  return r;
}

}  // namespace polyhead::test
