// What a model's folder says about its size.
#pragma once

#include <filesystem>

#include "json.h"

namespace polyhead::app {

// Of config.json, under one name for every model family: {model, layers, heads, kv_heads, width, hidden_width, vocabulary, positions}, as
// far as it says; empty where `path` is no folder or has none.
Json read_config(const std::filesystem::path& path);

}  // namespace polyhead::app
