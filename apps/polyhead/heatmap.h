// An attention map as text: each row is a query, each column a key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "polyhead/tensor_view.h"
#include "terminal.h"

namespace polyhead::app {

struct Heatmap {
  ConstTensorView weights;           // attention weights [T,S] float32, each at least 0 or NaN
  std::vector<std::string> rows;     // T words
  std::vector<std::string> columns;  // S words
};

std::vector<std::string> numbers_to(std::int64_t count);  // "0", "1", ...: names of rows or columns without words

// Returns lines of at most `width` terminal columns (at least 20); the last line is the legend. The width of a cell decides what is shown:
//   5 columns or more  a shade and the attention weight in percent; words are above the map's columns
//   2 to 4             a shade; words are written downward above the map's columns
//   1                  a shade; the map's columns have numbers, which are repeated in front of the rows' words
//   too many keys      no grid, but for each row the keys with the largest attention weights, largest first
std::string render(const Heatmap& map, std::size_t width, Colour colour);

}  // namespace polyhead::app
