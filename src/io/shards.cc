#include "io/shards.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "core/text.h"
#include "io/quote.h"
#include "io/safetensors.h"

namespace polyhead::io {

bool is_shard_index(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{';
}

TensorFile read_shards(const FileBytes& index) {
  const auto bad = [&](const auto&... parts) { fail(ErrorCode::format, index.name(), ": ", parts...); };
  const std::string_view text(reinterpret_cast<const char*>(index.bytes.data()), index.bytes.size());
  std::vector<std::set<std::string>> seen;  // keys of the open objects: a document would keep the last of two in silence
  const auto check_keys = [&](int depth, nlohmann::json::parse_event_t event, const nlohmann::json& parsed) {
    const auto inside = static_cast<std::size_t>(depth);
    if (event == nlohmann::json::parse_event_t::object_start) {
      seen.resize(std::max(seen.size(), inside + 2));
      seen[inside + 1].clear();
    }
    if (event == nlohmann::json::parse_event_t::key && !seen[inside].insert(parsed.get<std::string>()).second) {
      bad("it has the key ", quote(parsed.get<std::string>()), " twice");
    }
    return true;
  };
  const nlohmann::json json = nlohmann::json::parse(text.begin(), text.end(), check_keys, false);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    bad("it is no index of safetensors files: that is a JSON object with a weight_map");
  }
  std::map<std::string, std::set<std::string>> shards;  // file -> the tensors it must hold
  for (const auto& [name, file] : json["weight_map"].items()) {
    if (!file.is_string()) bad("the weight_map has no file name for tensor ", quote(name));
    const auto& file_name = file.get_ref<const std::string&>();
    // A file beside the index, not anywhere on the machine.
    if (file_name.empty() || file_name == "." || file_name == ".." ||
        file_name.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
      bad("the weight_map puts tensor ", quote(name), " in ", quote(file_name), ", which is no name of a file in the same folder");
    }
    shards[file_name].insert(name);
  }
  TensorFile result;
  std::set<std::string> names;
  for (const auto& [file_name, wanted] : shards) {
    const FileBytes bytes = map_file(index.path.parent_path() / file_name);
    TensorFile shard = read_safetensors(bytes);
    for (const std::string& name : wanted) {
      if (shard.find(name) == nullptr)
        bad("the weight_map puts tensor ", quote(name), " in ", quote(file_name), ", which does not hold it");
    }
    for (NamedTensor& item : shard.tensors) {
      if (!names.insert(item.name).second) bad("two of its files hold the tensor ", quote(item.name));
      result.tensors.push_back(std::move(item));
    }
    result.metadata.merge(shard.metadata);
  }
  return result;
}

}  // namespace polyhead::io
