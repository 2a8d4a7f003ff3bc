// Tests sdpa_jvp and sdpa_backward_backward in random problems. They are compared with differences of the naive formula, and for every input with central
// differences of sdpa_forward and sdpa_backward.
#include "support/second_derivatives.h"

#include "support/gradients.h"

namespace polyhead::test {
namespace {

// Returns the tolerance of a comparison. The expected differences have an error of 1e-12. Results in float32 or a 16-bit dtype are rounded once. Slopes and
// sink logits that a test changes in float32 are also rounded once.
double tolerance(DType dtype) { return dtype == DType::f64 ? 2e-11 : (dtype == DType::f32 ? 0x1.01p1 : 0x1.01p0) * unit_roundoff(dtype); }

testing::AssertionResult slopes_agree(ConstTensorView actual, const Tensor& expected) {
  return near(actual, expected, tolerance(actual.dtype()) * std::max(1.0, largest_magnitude(expected)));
}

TEST(ReferenceSecondDerivatives, AgreeWithDifferencesOfTheFormula) {
  for (std::uint64_t seed = 0; seed < 700; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed + 3'000'000), layout(seed + 1'000'000);
    SecondCase second{.c = draw_case(random, std::array{DType::f64, DType::f32, DType::bf16, DType::f16}[seed % 4]), .tangents = {}, .forward = {}};
    AttentionCase& c = second.c;
    c.options.backend = &find_backend("reference");
    second.tangents = draw_tangents(random, c);
    second.run_forward();
    const FullResults expected = naive_slopes(second);
    const SecondOutputs o = second.make_outputs(&layout);
    second.jvp(o);
    second.backward_backward(o);
    EXPECT_TRUE(slopes_agree(o.out_tangent, to_tensor(expected.out, c.sizes.out()))) << "out_tangent";
    EXPECT_TRUE(slopes_agree(o.lse_tangent, to_tensor(expected.lse, c.sizes.lse()))) << "lse_tangent";
    EXPECT_TRUE(slopes_agree(o.d_d_out, to_tensor(expected.out, c.sizes.out()))) << "d_d_out";
    expect_naive_gradients(c, expected, o.gradients, slopes_agree);
    EXPECT_TRUE(padding_is_intact(c.strided()));
    if (HasFailure()) return;
  }
}

// Compares the results of sdpa_backward_backward() with differences of a loss: the sum of <d_gradients, results of sdpa_backward>. Every element of every input
// is changed. Unlike the comparison with the naive formula, this test does not rely on the symmetry of second derivatives.
TEST(ReferenceSecondDerivatives, AreTheGradientOfTheBackwardPassByEveryInput) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed + 4'000'000);
    SecondCase second{.c = draw_case(random, DType::f64), .tangents = {}, .forward = {}};
    AttentionCase& c = second.c;
    if (numel(c.sizes.pairs()) > 200 || c.table) continue;
    c.options.backend = &find_backend("reference");
    const auto owned = [&](ConstTensorView& view) -> TensorView {
      if (!view) return {};
      const TensorView copy = c.keep(Tensor::copy_of(view));
      view = copy;
      return copy;
    };
    RelativeBias& relative = c.options.relative_bias;
    const TensorView q = owned(c.q), k = owned(c.k), v = owned(c.v), d_out = owned(c.d_out), bias = owned(c.options.bias), sink = owned(c.options.sink),
                     parameter = owned(relative.slopes ? relative.slopes : relative.table);
    second.tangents = draw_tangents(random, c);
    second.run_forward();
    const SecondOutputs o = second.make_outputs();
    second.backward_backward(o);
    const auto loss = [&] {
      const AttentionOutputs first = c.make_outputs();
      c.run(first);
      double sum = 0;
      const auto add = [&](const ConstTensorView& weights, const TensorView& gradient) { sum += weights ? weighted_sum(gradient, weights) : 0; };
      add(second.tangents.q, first.d_q), add(second.tangents.k, first.d_k), add(second.tangents.v, first.d_v), add(second.tangents.bias, first.d_bias);
      add(second.tangents.sink, first.d_sink), add(second.tangents.relative_bias, first.d_relative_bias);
      return sum;
    };
    std::vector<Leaf> leaves{{"q", q, o.gradients.d_q}, {"k", k, o.gradients.d_k}, {"v", v, o.gradients.d_v}, {"d_out", d_out, o.d_d_out}};
    if (bias) leaves.push_back({"bias", bias, o.gradients.d_bias});
    if (sink) leaves.push_back({"sink", sink, o.gradients.d_sink});
    if (parameter) leaves.push_back({"relative bias", parameter, o.gradients.d_relative_bias});
    expect_gradients(loss, leaves);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace polyhead::test
