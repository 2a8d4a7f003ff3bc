// The sizes of a model, from the config.json in its folder.
#pragma once

#include <filesystem>

#include "json.h"

namespace polyhead::app {

// {model, layers, heads, kv_heads, width, hidden_width, vocabulary, positions}, as far as config.json has them; names are the same for
// every model family. Empty if `path` is no folder or has no config.json.
Json read_config(const std::filesystem::path& path);

}  // namespace polyhead::app
