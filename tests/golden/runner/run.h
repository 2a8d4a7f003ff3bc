// Runs a folder of golden vectors.
#pragma once

#include <functional>
#include <span>

#include "golden/runner/tolerance.h"

namespace polyhead::golden {

struct RunOptions {
  std::vector<DType> dtypes{DType::f64};
  Float32Errors torch;  // PyTorch's errors in float32; if empty, they are estimated
  Setting setting;
};

struct RunResult {
  int passed = 0, failed = 0;
};

// Runs the files in the given order, once for each dtype. Calls print with one line for each run of a case. A file counts as failed if it cannot be read, or if
// it has an operation, an option or a tensor that the runner does not know.
RunResult run_files(std::span<const std::filesystem::path> paths, const RunOptions& options, const std::function<void(const std::string&)>& print);

// Calls run_files() for all *.safetensors files in the folder, in the order of their names. Error if the folder is missing or has no such file.
RunResult run_folder(const std::filesystem::path& folder, const RunOptions& options, const std::function<void(const std::string&)>& print);

}  // namespace polyhead::golden
