// A map of attention as text: rows attend, columns are attended to. A pure function of the map, the words, the width and the colours.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "polyhead/tensor_view.h"
#include "terminal.h"

namespace polyhead::app {

struct Heatmap {
  ConstTensorView weights;           // [T,S] float32, from 0 on
  std::vector<std::string> rows;     // T words
  std::vector<std::string> columns;  // S words
};

// Lines of at most `width` columns (at least 20), the last of them the legend. What there is room for decides the form:
//   wide cells     a shade and the weight in percent, words above the columns
//   narrow cells   shades, words downward above the columns
//   single columns shades, columns named by numbers that stand before the rows' words
//   too many keys  for each row the keys with the largest weights, largest first
std::string render(const Heatmap& map, std::size_t width, Colour colour);

}  // namespace polyhead::app
