// Random tangents of attention, and the expected results of sdpa_jvp and sdpa_backward_backward, computed as finite differences of the naive formula in long
// double.
#pragma once

#include <array>

#include "polyhead/sdpa_derivatives.h"
#include "support/attention_case.h"

namespace polyhead::test {

// The outputs of sdpa_jvp and sdpa_backward_backward. `gradients` has the layout of the outputs of a backward pass.
struct SecondOutputs {
  TensorView out_tangent, lse_tangent, d_d_out;
  AttentionOutputs gradients;

  std::vector<std::pair<const char*, TensorView>> list() const {
    std::vector<std::pair<const char*, TensorView>> all = gradients.list();
    all.emplace_back("out_tangent", out_tangent), all.emplace_back("lse_tangent", lse_tangent), all.emplace_back("d_d_out", d_d_out);
    return all;
  }
};

// An attention case, the tangents of its inputs, and out and lse of the forward pass.
struct SecondCase {
  AttentionCase c;
  SdpaTangents tangents;
  AttentionOutputs forward;

  void run_forward();
  SecondOutputs make_outputs(Random* random = nullptr);
  void jvp(const SecondOutputs& o) const;
  void backward_backward(const SecondOutputs& o) const;
};

// Draws a random tangent for each input. Each tangent is left out in one of four cases.
SdpaTangents draw_tangents(Random& random, AttentionCase& c, double magnitude = 1.5);

// Returns the problem with `step` times its tangent added to every input.
FullMatrices moved(const FullMatrices& m, const AttentionCase& c, const SdpaTangents& tangents, Real step);

// Returns the derivatives of the naive results along the tangents, by differences of fourth order. Second derivatives are symmetric, so the derivative of the
// gradients along a direction equals the gradient of <gradients, direction>. The derivatives are therefore also the expected results of sdpa_backward_backward.
FullResults naive_slopes(const SecondCase& second);

}  // namespace polyhead::test
