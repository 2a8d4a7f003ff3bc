// Random tangents of attention, and expected results of forward mode and of the second backward pass: finite differences of the naive formula in long double.
#pragma once

#include <array>

#include "polyhead/sdpa_derivatives.h"
#include "support/attention_case.h"

namespace polyhead::test {

// The outputs of sdpa_jvp and sdpa_backward_backward; gradients have the layout of those of a backward pass.
struct SecondOutputs {
  TensorView out_tangent, lse_tangent, d_d_out;
  AttentionOutputs gradients;

  std::vector<std::pair<const char*, TensorView>> list() const {
    std::vector<std::pair<const char*, TensorView>> all = gradients.list();
    all.emplace_back("out_tangent", out_tangent), all.emplace_back("lse_tangent", lse_tangent), all.emplace_back("d_d_out", d_d_out);
    return all;
  }
};

// An attention case, the directions in which its inputs move, and out and lse of the forward pass.
struct SecondCase {
  AttentionCase c;
  SdpaTangents tangents;
  AttentionOutputs forward;

  void run_forward();
  SecondOutputs make_outputs(Random* random = nullptr);
  void jvp(const SecondOutputs& o) const;
  void backward_backward(const SecondOutputs& o) const;
};

// Draws a tangent for each input in three of four cases.
SdpaTangents draw_tangents(Random& random, AttentionCase& c, double magnitude = 1.5);

// Returns the problem with every input moved by `step` along its tangent.
FullMatrices moved(const FullMatrices& m, const AttentionCase& c, const SdpaTangents& tangents, Real step);

// Returns the slopes of the naive results along the tangents, by differences of fourth order. Second derivatives are symmetric, so the slope of the gradients
// along a direction is the gradient of <gradients, direction>. The slopes are therefore also the results of sdpa_backward_backward.
FullResults naive_slopes(const SecondCase& second);

}  // namespace polyhead::test
