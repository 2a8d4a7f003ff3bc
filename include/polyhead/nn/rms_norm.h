#pragma once

#include "polyhead/nn/module.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

struct RMSNormConfig {
  std::int64_t width = 0;
  double epsilon = 1e-5;     // the same default as in Norm and in Llama 2 and 3; T5, Gemma and Qwen use 1e-6
  double weight_offset = 0;  // a number that is added to the weight; 1 in Gemma, whose files store weight - 1
  DType dtype = DType::f32;
};

// Divides by the root mean square of the last axis: y[..., e] = x[..., e] / sqrt(mean of x^2 + epsilon) * (weight[e] + weight_offset) (Zhang and Sennrich 2019,
// eq. 4). It is torch.nn.RMSNorm with eps = epsilon; torch's default eps is the dtype's machine epsilon. The initial weight is 1 - weight_offset.
struct RMSNorm : Module<RMSNorm> {
  Tensor weight;  // [width]
  double epsilon = 1e-5;
  double weight_offset = 0;

  RMSNorm() = default;
  explicit RMSNorm(const RMSNormConfig& config);
  RMSNorm(Tensor weight, double epsilon, double weight_offset = 0);  // uses a loaded tensor

  std::int64_t width() const { return weight.extent(0); }

  // x and y are [*,width] of the weight's dtype, with any strides; y may not overlap x.
  void forward(ConstTensorView x, TensorView y, const RunOptions& options = {}) const;
  // d_y is [*,width]. backward() computes the mean again from x.
  void backward(ConstTensorView x, ConstTensorView d_y, const Gradients<RMSNorm>& gradients, const RunOptions& options = {}) const;

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("weight", self.weight...);
    f("epsilon", self.epsilon...);
    f("weight_offset", self.weight_offset...);
  }
};

}  // namespace polyhead::nn
#pragma GCC visibility pop
