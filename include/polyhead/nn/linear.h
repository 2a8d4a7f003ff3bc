#pragma once

#include "polyhead/nn/module.h"
#include "polyhead/nn/seed.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

struct LinearConfig {
  std::int64_t in_width = 0;   // at least 1
  std::int64_t out_width = 0;  // at least 1
  bool bias = true;
  DType dtype = DType::f32;
  Seed seed;  // draws the initial parameters
};

// y[..., o] = sum_i weight[o,i] x[..., i] + bias[o]. Initialised as torch.nn.Linear: weight and bias uniform in +-1/sqrt(in_width).
struct Linear : Module<Linear> {
  Tensor weight;  // [out_width,in_width]
  Tensor bias;    // [out_width], or absent

  Linear() = default;
  explicit Linear(const LinearConfig& config);
  Linear(Tensor weight, Tensor bias);  // takes loaded tensors; bias may be absent

  std::int64_t in_width() const { return weight.extent(1); }
  std::int64_t out_width() const { return weight.extent(0); }

  // x [*,in_width] and y [*,out_width] of the weight's dtype, with any strides; y may not overlap x.
  void forward(ConstTensorView x, TensorView y, const RunOptions& options = {}) const;
  // d_y [*,out_width]. x is read only for the gradients of the parameters.
  void backward(ConstTensorView x, ConstTensorView d_y, const Gradients<Linear>& gradients, const RunOptions& options = {}) const;

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("weight", self.weight...);
    f("bias", self.bias...);
  }
};

}  // namespace polyhead::nn
#pragma GCC visibility pop
