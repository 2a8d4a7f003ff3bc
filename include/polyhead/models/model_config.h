// Reads the sizes of a model from its config.json, for programs that show them or need a number of heads that does not follow from the tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#pragma GCC visibility push(default)
namespace polyhead::models {

using ConfigValue = std::variant<std::int64_t, std::uint64_t, double, std::string>;  // an integer >= 0 is held as uint64

struct ConfigEntry {
  // The name of a size, the same for all families: model, layers, heads, kv_heads, width, hidden_width, vocabulary or positions. A model with an encoder and a
  // decoder also has decoder_layers, encoder_heads and decoder_heads. Its `layers` are those of the encoder; heads and hidden_width are missing if they differ
  // between encoder and decoder.
  std::string name;
  ConfigValue value;
};

// Returns the sizes in `folder`/config.json, in the order of the names above; for a folder that `polyhead train` made, all entries of the file. Empty if
// `folder` is not a folder or has no config.json.
std::vector<ConfigEntry> read_config(const std::filesystem::path& folder);

}  // namespace polyhead::models
#pragma GCC visibility pop
