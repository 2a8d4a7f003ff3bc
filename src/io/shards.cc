#include "io/formats.h"

#include <set>

#include "core/text.h"
#include "io/json.h"

namespace polyhead::io {

bool is_shard_index(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{';
}

TensorFile read_shards(const FileBytes& index) {
  const auto bad = [&](const auto&... parts) { fail(ErrorCode::format, index.name(), ": ", parts...); };
  const Json json = parse_json(index.text(), index.name() + ": it");
  const Json* weight_map = json.find("weight_map");
  const auto* files = weight_map == nullptr ? nullptr : weight_map->as<Json::Object>();
  if (files == nullptr) bad("it is not an index of safetensors files, which is a JSON object with a weight_map");
  std::map<std::string, std::set<std::string>> shards;  // file -> the tensors it must hold
  for (const auto& [name, value] : *files) {
    if (value.as<std::string>() == nullptr) bad("the weight_map has no file name for tensor ", quote(name));
    const std::string& file_name = *value.as<std::string>();
    // Accept only names of files in the index's folder: an index must not make us read other files.
    if (file_name.empty() || file_name == "." || file_name == ".." ||
        file_name.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
      bad("the weight_map puts tensor ", quote(name), " in ", quote(file_name), ", which does not name a file in the same folder");
    }
    shards[file_name].insert(name);
  }
  TensorFile result;
  std::set<std::string> names;
  for (const auto& [file_name, wanted] : shards) {
    require_regular(index.path.parent_path() / file_name);
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
