// The tensors that a command writes, and the report about them.
#pragma once

#include <string>
#include <vector>

#include "polyhead/io/tensor_file.h"

namespace polyhead::app {

using Results = std::vector<io::NamedTensor>;

// Prints names, dtypes and shapes of the tensors that were written to `path`.
void report(const std::string& what, const std::string& path, const Results& results, bool json);

}  // namespace polyhead::app
