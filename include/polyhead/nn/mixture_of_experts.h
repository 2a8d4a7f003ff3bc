// A mixture of experts: a feed-forward layer with many experts, of which a router chooses a few for each token (Shazeer et al. 2017; Fedus et al. 2022).
// Mixtral, Qwen's mixtures and gpt-oss use it in place of nn::FeedForward. It has no backward pass.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "polyhead/nn/feed_forward.h"
#include "polyhead/nn/seed.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

// Makes the experts compute as in gpt-oss (2025): with g = min(gate(x), limit), and h = hidden(x) clamped to [-limit, limit], an expert computes output((h + 1)
// * g * sigmoid(slope * g)).
struct ClampedGate {
  double slope = 1.702;
  double limit = 7;
};

struct MixtureOfExpertsConfig {
  std::int64_t width = 0;                // E, the width of input and output
  std::int64_t hidden_width = 0;         // hidden width of each expert
  std::int64_t experts = 0;              // C, the number of experts
  std::int64_t chosen = 0;               // number of experts that are chosen for each token; at most C
  std::int64_t shared_hidden_width = 0;  // hidden width of the shared expert, which all tokens use; 0: no shared expert
  Activation activation = Activation::silu;  // activation of the experts' gates
  std::optional<ClampedGate> clamped_gate{};
  bool normalise = true;  // true: the probabilities of the chosen experts are divided by their sum
  bool bias = false;      // true: the experts have biases
  bool router_bias = false;
  DType dtype = DType::f32;
  Seed seed;  // the initial parameters are drawn with this seed
};

// With p = softmax(router(x)) over the C experts, y = sum of p[i] * experts[i](x) over the `chosen` experts with the largest p; of equal p the first ones are
// chosen. With `normalise`, p[i] is divided by the sum of the chosen p, which gives the softmax over the chosen experts alone. A shared expert adds
// sigmoid(shared_gate(x)) * shared(x).
struct MixtureOfExperts : Module<MixtureOfExperts> {
  Linear router;                     // [C,E]
  std::vector<FeedForward> experts;  // C gated experts
  FeedForward shared;                // the shared expert, which is applied to all tokens; empty: there is none
  Linear shared_gate;                // [1,E]; absent without a shared expert
  std::int64_t chosen = 0;
  bool normalise = true;
  std::optional<ClampedGate> clamped_gate{};

  MixtureOfExperts() = default;
  explicit MixtureOfExperts(const MixtureOfExpertsConfig& config);

  explicit operator bool() const { return static_cast<bool>(router.weight); }

  // x and y are [*,E] of the parameters' dtype, with any strides; y may not overlap x. The outputs of the experts are summed in float32 (float64 for float64
  // parameters), in the order of the experts. Rows do not depend on each other.
  void forward(ConstTensorView x, TensorView y, const RunOptions& options = {}) const;

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("router", self.router...);
    f("experts", self.experts...);
    f("shared", self.shared...);
    f("shared_gate", self.shared_gate...);
    f("chosen", self.chosen...);
    f("normalise", self.normalise...);
    f("clamped_gate", self.clamped_gate...);
  }
};

}  // namespace polyhead::nn
#pragma GCC visibility pop
