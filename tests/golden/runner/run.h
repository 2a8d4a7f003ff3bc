// Runs a folder of golden vectors.
#pragma once

#include <functional>
#include <span>

#include "golden/runner/tolerance.h"

namespace polyhead::golden {

struct RunOptions {
  std::vector<DType> dtypes{DType::f64};
  Float32Errors torch;  // may be empty
  Setting setting;
};

struct RunResult {
  int passed = 0, failed = 0;
};

// Runs the files in their order, once per dtype; print gets a line per case and run. A file that cannot be read or that names something unknown counts as failed.
RunResult run_files(std::span<const std::filesystem::path> paths, const RunOptions& options, const std::function<void(const std::string&)>& print);

// Runs every *.safetensors in the folder, in the order of their names, as run_files(). Error when the folder is missing or holds no case.
RunResult run_folder(const std::filesystem::path& folder, const RunOptions& options, const std::function<void(const std::string&)>& print);

}  // namespace polyhead::golden
