// The elements of a tensor as text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "polyhead/tensor.h"

namespace polyhead::app {

struct NumberStyle {
  std::int64_t limit = 200;      // a tensor with more numbers is shown in part: the first and last indices of each dimension, with "…" between
  int digits = 4;                // number of digits after the decimal point
  std::size_t width = SIZE_MAX;  // columns of a line
};

// One line for each row of the last dimension, a heading for each matrix. If not all numbers are shown, the last line says how many are.
std::string number_text(ConstTensorView values, const NumberStyle& style);

}  // namespace polyhead::app
