// The numbers of a tensor, for reading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "json.h"
#include "polyhead/tensor.h"

namespace polyhead::app {

struct NumberStyle {
  std::int64_t limit = 200;          // numbers; of a larger tensor only the first and last along each dimension are shown, "…" for the rest
  int digits = 4;                    // after the point
  std::size_t width = SIZE_MAX;      // columns of a line
};

// One line for each row of the last dimension, a heading for each matrix. Says how many numbers there are where not all of them are shown.
std::string number_text(ConstTensorView values, const NumberStyle& style);

// Nested lists, with the fewest digits that tell a number of its dtype; numbers that JSON has no name for are "nan", "inf" and "-inf".
Json number_json(ConstTensorView values);

}  // namespace polyhead::app
