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

// Runs the files in the order given, once for each dtype. Calls print with one line for each run of a case. A file that cannot be read or that names
// something unknown counts as failed.
RunResult run_files(std::span<const std::filesystem::path> paths, const RunOptions& options, const std::function<void(const std::string&)>& print);

// Runs every *.safetensors in the folder by run_files(), in the order of their names. Error if the folder is missing or holds no case.
RunResult run_folder(const std::filesystem::path& folder, const RunOptions& options, const std::function<void(const std::string&)>& print);

}  // namespace polyhead::golden
