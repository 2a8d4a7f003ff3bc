// An attention map as text: each row is a query, each column a key.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "polyhead/tensor_view.h"
#include "terminal.h"

namespace polyhead::app {

struct Heatmap {
  ConstTensorView weights;           // [T,S] float32, each >= 0 or NaN
  std::vector<std::string> rows;     // T words
  std::vector<std::string> columns;  // S words
};

// Lines of at most `width` columns (at least 20); the last line is the legend. The width of a cell decides the form:
//   5 columns or more  a shade and the attention weight in percent, words above the columns
//   2 to 4             a shade, words written downward above the columns
//   1                  a shade; columns have numbers, which are also in front of the rows' words
//   too many keys      no grid: for each row the keys with the largest attention weights, largest first
std::string render(const Heatmap& map, std::size_t width, Colour colour);

}  // namespace polyhead::app
