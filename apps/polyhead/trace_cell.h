// Computes one attention weight of a model on a text step by step, as the page does for a cell, and prints the numbers.
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
