// config.json of a decoder.
#pragma once

#include "models/config_file.h"
#include "models/language_families.h"
#include "polyhead/models/language_model.h"

namespace polyhead::models {

using LanguageConfigFile = ConfigFile;

// Of the family's rope_parameters (transformers 5), or rope_theta, rope_scaling and the like (transformers 4). `width` of a head.
void read_rotary(LanguageConfigFile& file, const Family& family, LanguageModelConfig& config);

}  // namespace polyhead::models
