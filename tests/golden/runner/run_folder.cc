// The functions of the runner that read files from a disk. They are in a separate source, because WebAssembly (tests/live/golden.cc) has no disk.
#include <algorithm>
#include <fstream>

#include "golden/runner/run.h"

namespace polyhead::golden {

Float32Errors read_float32_errors(const std::filesystem::path& path) {
  std::ifstream file(path);
  require(file.good(), "cannot read ", path.string());
  try {
    return nlohmann::json::parse(file).get<Float32Errors>();
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorCode::format, path.string(), ": ", std::string_view(error.what()));
  }
}

RunResult run_folder(const std::filesystem::path& folder, const RunOptions& options, const std::function<void(const std::string&)>& print) {
  if (!std::filesystem::is_directory(folder)) fail(ErrorCode::io, "there is no folder ", folder.string());
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") paths.push_back(entry.path());
  }
  if (paths.empty()) fail(ErrorCode::io, folder.string(), " holds no *.safetensors");
  std::sort(paths.begin(), paths.end());
  return run_files(paths, options, print);
}

}  // namespace polyhead::golden
