// A feed-forward part of which each token uses a few of many: the experts that a router chooses (Shazeer et al. 2017; Fedus et al. 2022). Mixtral, Qwen's mixtures and
// gpt-oss have it in place of nn::FeedForward. Evaluation only.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "polyhead/nn/feed_forward.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

// The gated experts of gpt-oss (2025): with g and h limited to `limit` from above, and h also to -limit from below, an expert is
// output((h + 1) * g * sigmoid(slope * g)), where g = gate(x) and h = hidden(x).
struct ClampedGate {
  double slope = 1.702;
  double limit = 7;
};

struct MixtureOfExpertsConfig {
  std::int64_t width = 0;                // of the input and the output, E
  std::int64_t hidden_width = 0;         // of an expert
  std::int64_t experts = 0;              // C
  std::int64_t chosen = 0;               // of them for each token; at most C
  std::int64_t shared_hidden_width = 0;  // of an expert that all tokens use; 0: none
  Activation activation = Activation::silu;  // of the gates
  std::optional<ClampedGate> clamped_gate{};
  bool normalise = true;  // divides the chosen probabilities by their sum
  bool bias = false;      // of the experts
  bool router_bias = false;
  DType dtype = DType::f32;
  std::optional<std::uint64_t> seed{};  // of the initialisation; required
};

// p = softmax(router(x)) over the C experts; y = sum of p[i] * experts[i](x) over the `chosen` experts of the largest p, of equal ones the first. normalise: with p / sum of
// the chosen p, which is the softmax of their scores alone. A shared expert adds sigmoid(shared_gate(x)) * shared(x).
struct MixtureOfExperts : Module<MixtureOfExperts> {
  Linear router;                     // [C,E]
  std::vector<FeedForward> experts;  // C of them, gated
  FeedForward shared;                // or absent
  Linear shared_gate;                // [1,E]; absent without `shared`
  std::int64_t chosen = 0;
  bool normalise = true;
  std::optional<ClampedGate> clamped_gate{};

  MixtureOfExperts() = default;
  explicit MixtureOfExperts(const MixtureOfExpertsConfig& config);

  explicit operator bool() const { return static_cast<bool>(router.weight); }

  // x and y [*,E] of the parameters' dtype, with any strides; y may not overlap x. The sum over the experts is float32 (float64), in their order. Rows do not
  // depend on each other.
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
