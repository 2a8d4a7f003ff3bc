// Implements both layer normalisation and RMS normalisation: y = (x - mean) / sqrt(mean of (x - mean)^2 + epsilon) * (weight + weight_offset) + bias over the
// last axis.
#pragma once

#include "nn/check.h"
#include "polyhead/executor.h"
#include "polyhead/nn/module.h"

namespace polyhead::nn {

struct Normalisation {
  const char* operation;  // for messages
  const Tensor& weight;  // [width]
  ConstTensorView bias;  // [width], or absent
  double epsilon;
  bool centred;  // false: the mean is not subtracted (RMS normalisation)
  double weight_offset = 0;
};

// Error unless weight and bias have the shapes that Normalisation names, and epsilon is not negative.
void require_norm(const Normalisation& norm);

// Computes y = norm(x) for x and y [*,width].
void normalise(const Normalisation& norm, ConstTensorView x, TensorView y, Executor* executor);
// Computes sums += x, then y = norm(sums); see add_norm.h.
void add_and_normalise(const Normalisation& norm, ConstTensorView x, TensorView sums, TensorView y, Executor* executor);

// Computes the gradients of x, weight and bias. An absent gradient is not computed. The caller has checked d_weight and d_bias with require_gradients().
void norm_backward(const Normalisation& norm, ConstTensorView x, ConstTensorView d_y, TensorView d_x, Write x_write, TensorView d_weight, TensorView d_bias,
                   Write parameters_write, const RunOptions& options);

// Checks all arguments, then computes the gradients of `layer`. `norm` holds the layer's parameters and settings.
template <class M>
void norm_backward(const Normalisation& norm, const M& layer, ConstTensorView x, ConstTensorView d_y, const Gradients<M>& gradients, const RunOptions& options) {
  require_norm(norm);
  M* const grads = gradients.parameters;
  TensorView d_weight, d_bias;
  if (grads != nullptr) {
    require_gradients(norm.operation, layer, *grads, {{"x", x}, {"d_y", d_y}}, {"d_x", gradients.x});
    d_weight = grads->weight;
    if constexpr (requires { grads->bias; }) d_bias = grads->bias;
  }
  norm_backward(norm, x, d_y, gradients.x, gradients.x_write, d_weight, d_bias, gradients.parameters_write, options);
}

}  // namespace polyhead::nn
