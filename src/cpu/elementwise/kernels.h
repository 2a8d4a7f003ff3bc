// Elementwise functions and layer normalisation of contiguous float32, compiled for every instruction set.
#pragma once

#include <cstdint>

namespace polyhead::cpu {

struct ActivationKernel {
  void (*value)(std::int64_t count, const float* x, float* y);                                   // y = f(x); y may be x
  void (*backward)(std::int64_t count, const float* x, const float* d_y, bool add, float* d_x);  // d_x (+)= f'(x) d_y; d_x may be d_y
};

struct ActivationKernels {
  ActivationKernel sigmoid, tanh, gelu, gelu_tanh;
};

// sums = x + added, y = (sums - mean) / sqrt(variance + epsilon) * weight + bias, each `width` contiguous float32.
struct NormRow {
  std::int64_t width;
  float epsilon;
  const float *weight, *bias, *x;
  const float* added = nullptr;  // nullptr: y is computed from x, and `sums` is not used
  float* sums = nullptr;         // may be x
  float* y = nullptr;            // may be x, added or sums
};

struct NormKernels {
  void (*normalise_row)(const NormRow& row);
};

}  // namespace polyhead::cpu
