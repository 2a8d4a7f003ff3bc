#include "model_config.h"

#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "core/text.h"

namespace polyhead::app {
namespace {

struct ConfigKey {
  std::string_view meaning;
  std::vector<std::string_view> keys;  // what model families call it
};

const std::vector<ConfigKey>& config_keys() {
  static const std::vector<ConfigKey> keys{
      {"model", {"model_type"}},
      {"layers", {"num_hidden_layers", "num_layers", "n_layer"}},
      {"heads", {"num_attention_heads", "num_heads", "n_head"}},
      {"kv_heads", {"num_key_value_heads"}},
      {"width", {"hidden_size", "d_model", "n_embd"}},
      {"hidden_width", {"intermediate_size", "d_ff", "n_inner"}},
      {"vocabulary", {"vocab_size"}},
      {"positions", {"max_position_embeddings", "n_positions"}},
  };
  return keys;
}

}  // namespace

Json read_config(const std::filesystem::path& path) {
  const std::filesystem::path file = path / "config.json";
  Json found = Json::object();
  if (!std::filesystem::is_directory(path) || !std::filesystem::exists(file)) return found;
  std::ifstream stream(file, std::ios::binary);
  if (!stream) fail(ErrorCode::io, "cannot read '", file.string(), "'");
  const Json config = Json::parse(stream, nullptr, false);
  if (!config.is_object()) fail(ErrorCode::format, "'", file.string(), "' is not a JSON object");
  for (const ConfigKey& row : config_keys()) {
    for (const std::string_view key : row.keys) {
      const auto entry = config.find(std::string(key));
      if (entry == config.end() || !(entry->is_number() || entry->is_string())) continue;
      found[std::string(row.meaning)] = *entry;
      break;
    }
  }
  return found;
}

}  // namespace polyhead::app
