#include "models/sentence_modules.h"

#include <algorithm>

#include "core/text.h"
#include "io/file_bytes.h"
#include "models/json_file.h"

namespace polyhead::models {
namespace {

using io::Json;

constexpr const char* kModules = "modules.json";

// Formats a name from a file for a message: in quotes if it has characters that names of files and keys seldom have.
std::string shown(std::string_view name) {
  const auto is_plain = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.' || c == '/'; };
  return !name.empty() && name.size() <= 200 && std::ranges::all_of(name, is_plain) ? std::string(name) : io::quote(name);
}

// Returns the path of the config.json of a module. Error if its folder is outside the model's folder.
std::string config_path(const std::string& path) {
  const std::filesystem::path relative(path);
  if (relative.is_absolute() || std::ranges::find(relative, "..") != relative.end() || path.find('\0') != std::string::npos)
    fail(ErrorCode::format, kModules, ": path is ", io::quote(path), "; it must be a folder inside the model's folder");
  return (relative / "config.json").lexically_normal().generic_string();
}

// Returns why the embedding is not the mean over the tokens; empty if it is. `config`: path of the config.json of the Pooling.
std::string other_pooling(const std::filesystem::path& folder, const std::string& config) {
  const std::string name = shown(config);
  const JsonFile file(io::read_file(folder / config).text(), name);
  constexpr std::string_view kMode = "pooling_mode", kMean = "pooling_mode_mean_tokens";
  bool is_mean = true;
  for (const auto& [key, value] : *file.root().as<Json::Object>()) {
    if (!(key == kMode || key.starts_with("pooling_mode_")) || value.as<std::nullptr_t>() != nullptr) continue;
    const auto* given = value.as<bool>();
    const auto* mode = value.as<std::string>();
    if (key == kMode && mode != nullptr) {
      if (*mode != "mean") return cat(name, ": ", kMode, " is ", io::quote(*mode));
    } else if (key == kMode || given == nullptr) {
      return cat(name, ": ", shown(key), " is ", io::describe(value));
    } else if (key == kMean) {
      is_mean = *given;
    } else if (*given) {
      return cat(name, ": ", shown(key), " is true");
    }
  }
  return is_mean ? "" : cat(name, ": ", kMean, " is false");
}

}  // namespace

SentenceModules read_sentence_modules(const std::filesystem::path& folder) {
  if (!io::file_exists(folder / kModules)) return {};
  SentenceModules read{.other_embedding = "", .files = {kModules}};
  const io::FileBytes bytes = io::read_file(folder / kModules);
  const Json root = io::parse_json(bytes.text(), kModules);
  const auto* modules = root.as<Json::Array>();
  if (modules == nullptr) fail(ErrorCode::format, kModules, " is ", io::describe(root), "; a list of modules is needed");
  bool has_pooling = false;
  for (const Json& module : *modules) {
    const auto word = [&](std::string_view key) {
      const Json* member = module.as<Json::Object>() == nullptr ? nullptr : module.find(key);
      const auto* text = member == nullptr ? nullptr : member->as<std::string>();
      if (text == nullptr) fail(ErrorCode::format, kModules, ": a module has no ", key, ", which must be a string");
      return *text;
    };
    const std::string type = word("type"), kind = type.substr(type.rfind('.') + 1);
    if (kind == "Transformer" || kind == "Normalize") continue;
    if (kind != "Pooling") {
      read.other_embedding = cat(kModules, " has the module ", shown(kind));
      return read;
    }
    has_pooling = true;
    const std::string config = config_path(word("path"));
    if (!io::file_exists(folder / config)) {
      read.other_embedding = cat(kModules, " has a Pooling, and ", shown(config), " is missing");
      return read;
    }
    read.files.push_back(config);
    read.other_embedding = other_pooling(folder, config);
    if (!read.other_embedding.empty()) return read;
  }
  if (!has_pooling) read.other_embedding = cat(kModules, " has no Pooling");
  return read;
}

}  // namespace polyhead::models
