// What layer normalisation and RMS normalisation share: y = (x - mean) / sqrt(mean of (x - mean)^2 + epsilon) * weight + bias over the last axis.
#pragma once

#include "polyhead/executor.h"
#include "polyhead/nn/module.h"

namespace polyhead::nn {

struct Norm {
  const char* operation;  // for messages
  const Tensor& weight;  // [width]
  ConstTensorView bias;  // [width], or absent
  double epsilon;
  bool centred;  // false: mean is 0 (RMS normalisation)
};

// Error unless the parameters fit.
void require_norm(const Norm& norm);

// x and y [*,width].
void normalise(const Norm& norm, ConstTensorView x, TensorView y, Executor* executor);
// sums += x, then y = norm(sums); see add_norm.h.
void add_and_normalise(const Norm& norm, ConstTensorView x, TensorView sums, TensorView y, Executor* executor);

// Absent gradients are not computed. d_weight and d_bias were checked by require_gradients.
void norm_backward(const Norm& norm, ConstTensorView x, ConstTensorView d_y, TensorView d_x, Write x_write, TensorView d_weight, TensorView d_bias,
                   Write parameters_write, const RunOptions& options);

}  // namespace polyhead::nn
