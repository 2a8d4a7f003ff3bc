#include "models/sentence_modules.h"

#include "core/text.h"
#include "io/file_bytes.h"
#include "models/json_file.h"

namespace polyhead::models {
namespace {

using io::Json;

std::string other_pooling(const std::filesystem::path& folder, const std::string& path) {
  const std::string name = cat(path, "/config.json");
  if (!io::file_exists(folder / path / "config.json")) return cat("modules.json has a Pooling, and ", name, " is missing");
  const JsonFile file(folder / path / "config.json");
  if (const auto mode = file.get<std::string>(file.root(), "pooling_mode"); mode && *mode != "mean") return cat(name, ": pooling_mode is '", *mode, "'");
  constexpr std::string_view kMode = "pooling_mode_", kMean = "pooling_mode_mean_tokens";
  for (const auto& [key, value] : *file.root().as<Json::Object>())
    if (key.starts_with(kMode) && key != kMean && file.get<bool>(file.root(), key).value_or(false)) return cat(name, ": ", key, " is true");
  return file.get<bool>(file.root(), kMean).value_or(true) ? "" : cat(name, ": ", kMean, " is false");
}

}  // namespace

std::string other_embedding(const std::filesystem::path& folder) {
  constexpr const char* kName = "modules.json";
  if (!io::file_exists(folder / kName)) return "";
  const io::FileBytes bytes = io::read_file(folder / kName);
  const Json root = io::parse_json(bytes.text(), kName);
  const auto* modules = root.as<Json::Array>();
  if (modules == nullptr) fail(ErrorCode::format, kName, " is ", io::describe(root), "; a list of modules is needed");
  for (const Json& module : *modules) {
    const auto word = [&](std::string_view key) {
      const Json* member = module.as<Json::Object>() == nullptr ? nullptr : module.find(key);
      const auto* text = member == nullptr ? nullptr : member->as<std::string>();
      if (text == nullptr) fail(ErrorCode::format, kName, ": a module has no ", key, ", which must be a string");
      return *text;
    };
    const std::string type = word("type"), kind = type.substr(type.rfind('.') + 1);
    if (kind == "Transformer" || kind == "Normalize") continue;
    if (kind != "Pooling") return cat(kName, " has the module ", kind);
    if (std::string reason = other_pooling(folder, word("path")); !reason.empty()) return reason;
  }
  return "";
}

}  // namespace polyhead::models
