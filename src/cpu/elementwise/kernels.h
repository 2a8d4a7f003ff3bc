// Functions of one number and of one row that every instruction set has, over contiguous float32.
#pragma once

#include <cstdint>

namespace polyhead::cpu {

struct Curve {
  void (*value)(std::int64_t count, const float* x, float* y);                                   // y = f(x); y may be x
  void (*backward)(std::int64_t count, const float* x, const float* d_y, bool add, float* d_x);  // d_x (+)= f'(x) d_y; d_x may be d_y
};

struct Curves {
  Curve sigmoid, tanh, gelu, gelu_tanh;
};

// sums = x + added, y = (sums - mean) / sqrt(variance + epsilon) * weight + bias, each `width` float32 side by side.
struct NormRow {
  std::int64_t width;
  float epsilon;
  const float *weight, *bias, *x;
  const float* added = nullptr;  // nullptr: x is what is normalised, and there are no sums
  float* sums = nullptr;         // may be x
  float* y = nullptr;            // may be any of them
};

struct NormKernels {
  void (*normalise_row)(const NormRow& row);
};

}  // namespace polyhead::cpu
