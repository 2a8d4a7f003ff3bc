#include "polyhead/models/model_config.h"

#include <optional>
#include <string_view>
#include <type_traits>

#include "core/text.h"
#include "io/file_bytes.h"
#include "io/json.h"

namespace polyhead::models {
namespace {

struct ConfigKey {
  std::string_view name;
  std::vector<std::string_view> keys;  // the names that this entry has in the config.json of model families
  std::string_view same_as = "";       // the entry is left out if this key has another value: a single number would be wrong for the encoder or for the decoder
};

const std::vector<ConfigKey>& config_keys() {
  static const std::vector<ConfigKey> keys{
      {"model", {"model_type", "architecture"}},
      {"layers", {"num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers"}},
      {"decoder_layers", {"num_decoder_layers", "decoder_layers"}},
      {"heads", {"num_attention_heads", "num_heads", "n_head", "n_heads", "encoder_attention_heads"}, "decoder_attention_heads"},
      {"encoder_heads", {"encoder_attention_heads"}},
      {"decoder_heads", {"decoder_attention_heads"}},
      {"kv_heads", {"num_key_value_heads"}},
      {"width", {"hidden_size", "d_model", "n_embd", "dim"}},
      {"hidden_width", {"intermediate_size", "d_ff", "n_inner", "hidden_dim", "encoder_ffn_dim"}, "decoder_ffn_dim"},
      {"vocabulary", {"vocab_size"}},
      {"positions", {"max_position_embeddings", "n_positions"}},
  };
  return keys;
}

// Returns a number or a text; nullopt for other values.
std::optional<ConfigValue> number_or_text(const io::Json& json) {
  const auto convert = []<class T>(const T& value) -> std::optional<ConfigValue> {
    if constexpr ((std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) || std::is_same_v<T, std::string>) return value;
    return std::nullopt;
  };
  return std::visit(convert, json.value);
}

}  // namespace

std::vector<ConfigEntry> read_config(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "config.json";
  std::vector<ConfigEntry> found;
  if (!io::file_exists(file)) return found;
  const io::Json config = io::parse_json(io::read_file(file).text(), cat("'", file.string(), "'"));
  if (config.as<io::Json::Object>() == nullptr) fail(ErrorCode::format, "'", file.string(), "' is not a JSON object");
  const io::Json* const kind = config.find("model_type");
  const auto* const type = kind == nullptr ? nullptr : kind->as<std::string>();
  if (type != nullptr && type->starts_with("polyhead-")) {
    for (const auto& [key, json] : *config.as<io::Json::Object>())
      if (const auto value = number_or_text(json)) found.push_back({key == "model_type" ? "model" : key, *value});
    return found;
  }
  for (const ConfigKey& row : config_keys()) {
    for (const std::string_view key : row.keys) {
      const io::Json* entry = config.find(key);
      const std::optional<ConfigValue> value = entry == nullptr ? std::nullopt : number_or_text(*entry);
      if (!value) continue;
      const io::Json* other = row.same_as.empty() ? nullptr : config.find(row.same_as);
      if (other != nullptr && number_or_text(*other) != value) break;
      found.push_back({std::string(row.name), *value});
      break;
    }
  }
  return found;
}

}  // namespace polyhead::models
