#pragma once

#include "polyhead/nn/module.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

struct LayerNormConfig {
  std::int64_t width = 0;
  double epsilon = 1e-5;
  bool bias = true;
  DType dtype = DType::f32;
};

// Normalises the last axis: y[..., e] = (x[..., e] - mean) / sqrt(variance + epsilon) * weight[e] + bias[e]. Mean and variance (divided by the width) are those
// of the last axis (Ba, Kiros, Hinton 2016, eq. 4). Initial parameters are those of torch.nn.LayerNorm: weight 1, bias 0.
struct LayerNorm : Module<LayerNorm> {
  Tensor weight;  // [width]
  Tensor bias;    // [width], or absent
  double epsilon = 1e-5;

  LayerNorm() = default;
  explicit LayerNorm(const LayerNormConfig& config);
  LayerNorm(Tensor weight, Tensor bias, double epsilon);  // uses loaded tensors; bias may be absent

  std::int64_t width() const { return weight.extent(0); }

  // x and y are [*,width] of the weight's dtype, with any strides; y may not overlap x.
  void forward(ConstTensorView x, TensorView y, const RunOptions& options = {}) const;
  // d_y is [*,width]. backward() computes mean and variance again from x.
  void backward(ConstTensorView x, ConstTensorView d_y, const Gradients<LayerNorm>& gradients, const RunOptions& options = {}) const;

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("weight", self.weight...);
    f("bias", self.bias...);
    f("epsilon", self.epsilon...);
  }
};

}  // namespace polyhead::nn
#pragma GCC visibility pop
