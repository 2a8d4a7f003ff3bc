// Reads modules.json, in which the `sentence-transformers` package lists what makes the embedding of a text.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace polyhead::models {

struct SentenceModules {
  // Why sentence_embedding() is not the embedding of the folder, such as "1_Pooling/config.json: pooling_mode_cls_token is true"; empty if it is, or if the
  // folder has no modules.json.
  std::string other_embedding;
  std::vector<std::string> files;  // modules.json and the other files that were read, relative to the folder
};

// Error if modules.json is no list of modules, or names a folder outside the model's folder.
SentenceModules read_sentence_modules(const std::filesystem::path& folder);

}  // namespace polyhead::models
