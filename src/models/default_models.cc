#include "polyhead/models/default_models.h"

#include <algorithm>
#include <span>

#include "core/embed_file.h"
#include "core/join.h"
#include "io/file_bytes.h"

// default_files.inc has POLYHEAD_FILE(label, name, path) for each file.
#define POLYHEAD_FILE(label, name, path) POLYHEAD_EMBED_FILE(label, path)
#include "default_files.inc"
#undef POLYHEAD_FILE

namespace polyhead::models {
namespace {

std::span<const io::BuiltInFile> files() {
  static const std::vector<io::BuiltInFile> kFiles{
#define POLYHEAD_FILE(label, name, path) io::BuiltInFile{name, {label, static_cast<std::size_t>(label##_end - label)}},
#include "default_files.inc"
#undef POLYHEAD_FILE
  };
  return kFiles;
}

}  // namespace

std::vector<std::string> default_models() {
  std::vector<std::string> names;
  for (const io::BuiltInFile& file : files()) names.emplace_back(file.name.substr(0, file.name.find('/')));
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

std::filesystem::path default_model(std::string_view name) {
  static const std::span<const io::BuiltInFile> kFiles = files();
  io::set_built_in_files(&kFiles);
  const std::vector<std::string> names = default_models();
  if (std::ranges::find(names, name) == names.end())
    fail(ErrorCode::invalid_argument, "default_model: there is no model '", name, "' in the library; it has ", names.empty() ? "none" : join(names));
  return std::string(io::kBuiltIn) + std::string(name);
}

}  // namespace polyhead::models
