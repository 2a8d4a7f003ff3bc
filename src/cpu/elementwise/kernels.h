// Functions of one number that every instruction set has, over contiguous float32.
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

}  // namespace polyhead::cpu
