// A view of any shape without memory for its elements, for functions that read only the shape.
#pragma once

#include <algorithm>

#include "polyhead/tensor_view.h"

namespace polyhead::app {

// All strides are 0, so every element is the same zero in memory.
inline ConstTensorView placeholder(DType dtype, const Shape& shape) {
  static constexpr double kElement = 0;  // a double, because no dtype is larger
  Strides zeros = shape;
  std::ranges::fill(zeros, 0);
  return {&kElement, dtype, shape, zeros};
}

}  // namespace polyhead::app
