// One attention weight of a model on a text, worked out in numbers: what the page shows of a cell, for the terminal.
#pragma once

#include <cstddef>
#include <string>

namespace polyhead::app {

struct CellOptions {
  std::string model, text;
  std::string cell;  // "LAYER,HEAD,QUERY,KEY": numbers from 0; the last two may be words of the text
  bool json = false;
};

// Prints the steps from q and k to the weight, the row's softmax and the head's output. UsageError if there is no such cell.
void trace_cell(const CellOptions& options);

}  // namespace polyhead::app
