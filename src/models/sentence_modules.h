// Reads modules.json, in which the `sentence-transformers` package lists what makes the embedding of a text.
#pragma once

#include <filesystem>
#include <string>

namespace polyhead::models {

// Returns why sentence_embedding() is not the embedding of the folder, such as "1_Pooling/config.json: pooling_mode_cls_token is true"; empty if it is, or if
// the folder has no modules.json.
std::string other_embedding(const std::filesystem::path& folder);

}  // namespace polyhead::models
