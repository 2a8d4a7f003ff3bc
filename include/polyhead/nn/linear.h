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
  Seed seed;  // the initial parameters are drawn with this seed
};

// A linear layer: y[..., o] = sum_i weight[o,i] x[..., i] + bias[o]. Initial parameters are those of torch.nn.Linear: weight and bias uniform in
// +-1/sqrt(in_width).
struct Linear : Module<Linear> {
  Tensor weight;  // [out_width,in_width]
  Tensor bias;    // [out_width], or absent

  Linear() = default;
  explicit Linear(const LinearConfig& config);
  Linear(Tensor weight, Tensor bias);  // uses loaded tensors; bias may be absent

  std::int64_t in_width() const { return weight.extent(1); }
  std::int64_t out_width() const { return weight.extent(0); }

  // x is [*,in_width] and y is [*,out_width], both of the weight's dtype, with any strides; y may not overlap x.
  void forward(ConstTensorView x, TensorView y, const RunOptions& options = {}) const;
  // d_y is [*,out_width]. x is only read for the gradients of the parameters.
  void backward(ConstTensorView x, ConstTensorView d_y, const Gradients<Linear>& gradients, const RunOptions& options = {}) const;

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("weight", self.weight...);
    f("bias", self.bias...);
  }
};

}  // namespace polyhead::nn
#pragma GCC visibility pop
