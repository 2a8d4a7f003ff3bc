#pragma once

#include "polyhead/nn/activation.h"
#include "polyhead/nn/linear.h"
#include "polyhead/nn/seed.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

struct FeedForwardConfig {
  std::int64_t width = 0;  // width of the input
  std::int64_t hidden_width = 0;
  std::int64_t out_width = 0;  // 0: width
  Activation activation = Activation::gelu;
  bool gated = false;  // true: the layer has a gate; with Activation::silu: SwiGLU
  bool bias = true;
  DType dtype = DType::f32;
  Seed seed;  // draws the initial parameters
};

// y = output(activation(hidden(x))), applied to each position (Vaswani et al. 2017, eq. 2). Gated:
// y = output(activation(gate(x)) * hidden(x)) (Shazeer 2020, eq. 5 and 6: SwiGLU with silu, GEGLU with gelu, ReGLU, GLU with sigmoid).
struct FeedForward : Module<FeedForward> {
  Linear hidden;  // width -> hidden_width
  Linear output;  // hidden_width -> out_width
  Linear gate;    // width -> hidden_width, or absent
  Activation activation = Activation::gelu;

  // What backward needs from a forward pass.
  struct Saved {
    ConstTensorView x;  // the input: the caller keeps its memory until backward is done
    Tensor hidden;      // [*,hidden_width], before the activation
    Tensor gate;        // [*,hidden_width], before the activation; absent if not gated. In a gated layer the activation is applied to this tensor and not to `hidden`.
    Activation activation = Activation::gelu;
    bool constant_parameters = false;  // whether forward() used a workspace with Parameters::constant
  };

  FeedForward() = default;
  explicit FeedForward(const FeedForwardConfig& config);
  // Error unless hidden.out_width() == output.in_width() and a gate has the shape of hidden.
  FeedForward(Linear hidden, Linear output, Activation activation, Linear gate = {});

  bool gated() const { return static_cast<bool>(gate.weight); }

  // x [*,width], y [*,out_width] of the parameters' dtype, with any strides; y may not overlap x.
  void forward(ConstTensorView x, TensorView y, const RunOptions& options = {}, Saved* saved = nullptr) const;
  // d_y [*,out_width]. Error where `saved` comes from a layer of other widths or another activation.
  void backward(const Saved& saved, ConstTensorView d_y, const Gradients<FeedForward>& gradients, const RunOptions& options = {}) const;

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("hidden", self.hidden...);
    f("output", self.output...);
    f("gate", self.gate...);
    f("activation", self.activation...);
  }
};

}  // namespace polyhead::nn
#pragma GCC visibility pop
