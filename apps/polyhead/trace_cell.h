// Computes one attention weight of a model on a text step by step, and prints the numbers. The page shows the same numbers when a cell of a map is chosen.
#pragma once

#include <cstddef>
#include <string>

namespace polyhead::app {

struct CellOptions {
  std::string model, text;
  std::string cell;  // "LAYER,HEAD,QUERY,KEY": numbers from 0; QUERY and KEY may also be words of the text
  bool json = false;
};

// Prints the steps from q and k to the weight, the row's softmax and the head's output. UsageError if the text and the model have no such cell.
void trace_cell(const CellOptions& options);

}  // namespace polyhead::app
