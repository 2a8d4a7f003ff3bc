// The tensors that a command writes, and what it says about them.
#pragma once

#include <string>
#include <vector>

#include "polyhead/io/tensor_file.h"

namespace polyhead::app {

using Results = std::vector<io::NamedTensor>;

// On stdout: names, dtypes and shapes of what was written to `path`.
void report(const std::string& what, const std::string& path, const Results& results, bool json);

}  // namespace polyhead::app
