// Convolutions over the positions of a sequence, as products of a matrix with overlapping rows.
#pragma once

#include "nn/check.h"
#include "polyhead/nn/linear.h"

namespace polyhead::models {

// x [*,F,in] -> [*,ceil(F / stride),out]. Position s of the result is the linear layer applied to x at stride s - 1, stride s and stride s + 1,
// concatenated; x is 0 beyond its ends.
inline Tensor convolve(const nn::Linear& kernel, ConstTensorView x, std::int64_t stride, const nn::RunOptions& run) {
  const std::int64_t length = x.extent(-2), in = x.extent(-1), count = (length + stride - 1) / stride;
  Shape padded_shape = x.shape();
  padded_shape[-2] = length + 2;
  Tensor padded = uninitialised(x.dtype(), padded_shape, run.workspace);
  copy(x, padded.view().slice(-2, 1, length + 1));
  for (const std::int64_t end : {std::int64_t{0}, length + 1}) fill(padded.view().select(-2, end), 0);
  Shape windows = x.shape();
  windows[-2] = count, windows[-1] = 3 * in;
  Shape strides = padded.view().strides();
  strides[-2] = stride * in;
  Shape result = x.shape();
  result[-2] = count, result[-1] = kernel.out_width();
  Tensor y = uninitialised(x.dtype(), result, run.workspace);
  kernel.forward(ConstTensorView(padded.view().data(), x.dtype(), windows, strides), y, run);
  return y;
}

}  // namespace polyhead::models
