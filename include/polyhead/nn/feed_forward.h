#pragma once

#include "polyhead/nn/activation.h"
#include "polyhead/nn/linear.h"
#include "polyhead/nn/seed.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

struct FeedForwardConfig {
  std::int64_t width = 0;  // width of the input
  std::int64_t hidden_width = 0;
  std::int64_t out_width = 0;  // width of the output; 0: the same as the input's
  Activation activation = Activation::gelu;
  bool gated = false;  // true: the network has a gate; with Activation::silu it is SwiGLU
  bool bias = true;
  DType dtype = DType::f32;
  Seed seed;  // the initial parameters are drawn with this seed
};

// A feed-forward network, applied to each position: y = output(activation(hidden(x))) (Vaswani et al. 2017, eq. 2).
// With a gate: y = output(activation(gate(x)) * hidden(x)) (Shazeer 2020, eq. 5 and 6: SwiGLU with silu, GEGLU with gelu, ReGLU, GLU with sigmoid).
struct FeedForward : Module<FeedForward> {
  Linear hidden;  // width -> hidden_width
  Linear output;  // hidden_width -> out_width
  Linear gate;    // width -> hidden_width; absent in a network without a gate
  Activation activation = Activation::gelu;

  // What backward() needs from a forward pass.
  struct Saved {
    ConstTensorView x;  // the input; the caller keeps its memory until backward() is done
    Tensor hidden;      // [*,hidden_width], before the activation
    Tensor gate;        // [*,hidden_width], before the activation, which is applied to this tensor and not to `hidden`; absent without a gate
    Activation activation = Activation::gelu;
    bool constant_parameters = false;  // true: forward() used a workspace with Parameters::constant
  };

  FeedForward() = default;
  explicit FeedForward(const FeedForwardConfig& config);
  // Makes a network of given layers. Error unless hidden.out_width() == output.in_width(), and a gate has the shape of `hidden`.
  FeedForward(Linear hidden, Linear output, Activation activation, Linear gate = {});

  bool gated() const { return static_cast<bool>(gate.weight); }

  // x is [*,width] and y is [*,out_width], both of the parameters' dtype, with any strides; y may not overlap x.
  void forward(ConstTensorView x, TensorView y, const RunOptions& options = {}, Saved* saved = nullptr) const;
  // d_y is [*,out_width]. Error if `saved` comes from a network with other widths or another activation.
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
