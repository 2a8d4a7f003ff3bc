// Reads config.json of a decoder, or of a model with an encoder and a decoder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "models/config_file.h"
#include "models/language_families.h"
#include "polyhead/models/language_model.h"

namespace polyhead::models {

// Returns the token ids of a key: a number or a list of numbers; empty if null or missing.
std::vector<std::int64_t> token_ids(const JsonFile& file, std::string_view key);
// Returns generation_config.json; nullopt if the folder has none.
std::optional<JsonFile> read_generation_config(const std::filesystem::path& folder);
// Returns eos_token_id of generation_config.json, else of `file`.
std::vector<std::int64_t> end_tokens(ConfigFile& file, const std::optional<JsonFile>& generation);
// Returns the rules, such as "num_beams = 4", with which transformers would choose other tokens and which generate() does not follow. `file`:
// generation_config.json or, if it is missing, config.json.
std::vector<std::string> rules_not_followed(const JsonFile& file);
// The end of the message of ConfigFile::require_all_read().
inline constexpr std::string_view kIgnoredKeysRemedy = ". LanguageLoadOptions::ignored_keys (in Python ignored_keys=) skips keys that do not";

// Sets the rotary positions of `config` from rope_parameters (transformers 5), or from rope_theta, rope_scaling and similar keys (transformers 4).
void read_rotary(ConfigFile& file, const Family& family, LanguageModelConfig& config);

}  // namespace polyhead::models
