// What a model's config.json says of its sizes, for programs that show it or need a number of heads that the tensors do not tell.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#pragma GCC visibility push(default)
namespace polyhead::models {

using ConfigValue = std::variant<std::int64_t, std::uint64_t, double, std::string>;  // integers from 0 on are uint64

struct ConfigEntry {
  // model, layers, heads, kv_heads, width, hidden_width, vocabulary or positions, in every model family. With two sides, layers are the encoder's, decoder_layers,
  // encoder_heads and decoder_heads are there too, and heads and hidden_width are missing where the sides differ.
  std::string name;
  ConfigValue value;
};

// The entries of `folder`/config.json that have these names, in this order; all entries if `polyhead train` made the folder. Empty if `folder` is no folder or has no config.json.
std::vector<ConfigEntry> read_config(const std::filesystem::path& folder);

}  // namespace polyhead::models
#pragma GCC visibility pop
