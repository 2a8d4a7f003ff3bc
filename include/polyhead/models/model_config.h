// Reads the sizes of a model from its config.json, for programs that show them or need a number of heads that does not follow from the tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#pragma GCC visibility push(default)
namespace polyhead::models {

using ConfigValue = std::variant<std::int64_t, std::uint64_t, double, std::string>;  // integers >= 0 are uint64

struct ConfigEntry {
  // One of these names, the same for all families: model, layers, heads, kv_heads, width, hidden_width, vocabulary, positions. For a model with encoder and
  // decoder, `layers` is that of the encoder, there are also decoder_layers, encoder_heads and decoder_heads, and heads and hidden_width are missing if they
  // differ between encoder and decoder.
  std::string name;
  ConfigValue value;
};

// Returns the entries of `folder`/config.json with these names, in this order; all entries if `polyhead train` made the folder. Empty if `folder` is
// not a folder or has no config.json.
std::vector<ConfigEntry> read_config(const std::filesystem::path& folder);

}  // namespace polyhead::models
#pragma GCC visibility pop
