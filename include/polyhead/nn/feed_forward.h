#pragma once

#include <optional>

#include "polyhead/nn/activation.h"
#include "polyhead/nn/linear.h"
#include "polyhead/workspace.h"

namespace polyhead::nn {

struct FeedForwardConfig {
  std::int64_t width = 0;         // of the input
  std::int64_t hidden_width = 0;
  std::int64_t out_width = -1;    // -1: as the input
  Activation activation = Activation::gelu;
  bool bias = true;
  DType dtype = DType::f32;
  std::uint64_t seed = 0;
};

// y = output(activation(hidden(x))), position by position (Vaswani et al. 2017, eq. 2).
struct FeedForward : Module<FeedForward> {
  Linear hidden;  // width -> hidden_width
  Linear output;  // hidden_width -> out_width
  Activation activation = Activation::gelu;

  // What backward needs of a forward pass.
  struct Saved {
    Tensor hidden;  // [*,hidden_width], before the activation
    std::optional<Workspace> workspace{};  // as given to forward; backward takes its memory from there
  };

  FeedForward() = default;
  explicit FeedForward(const FeedForwardConfig& config);
  FeedForward(Linear hidden, Linear output, Activation activation);  // Error when the widths do not meet

  // x [*,width], y [*,out_width] of the parameters' dtype, with any strides; y may not overlap x.
  void forward(ConstTensorView x, TensorView y, Saved* saved = nullptr, Executor* executor = nullptr, const Workspace* workspace = nullptr) const;
  // d_y [*,out_width] -> d_x [*,width] (absent: not wanted) and grads (nullptr: not wanted); x is needed for grads only.
  void backward(ConstTensorView x, const Saved& saved, ConstTensorView d_y, TensorView d_x, FeedForward* grads,
                Write d_x_write = Write::replace, Executor* executor = nullptr) const;

  template <class Self, class F>
  static void visit_parameters(Self& self, F& f) {
    visit_child("hidden", self.hidden, f);
    visit_child("output", self.output, f);
  }
};

}  // namespace polyhead::nn
