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
// Returns the token id of a key; nullopt if null or missing. Error if the key has a list of several tokens.
std::optional<std::int64_t> one_token(const JsonFile& file, std::string_view key);
// Returns the rules of generation_config.json or, if it is missing, of `file`, without the start token. eos_token_id is read in `file` if generation_config.json
// lacks it.
AnswerRules answer_rules(ConfigFile& file, const std::optional<JsonFile>& generation);
// The end of the message of ConfigFile::require_all_read().
inline constexpr std::string_view kIgnoredKeysRemedy = ". LanguageLoadOptions::ignored_keys (in Python ignored_keys=) skips keys that do not";

// Sets the rotary positions of `config` from rope_parameters (transformers 5), or from rope_theta, rope_scaling and similar keys (transformers 4).
void read_rotary(ConfigFile& file, const Family& family, LanguageModelConfig& config);

}  // namespace polyhead::models
