// Reads modules.json, in which the `sentence-transformers` package lists the modules that compute the embedding of a text.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace polyhead::models {

struct SentenceModules {
  // The reason why sentence_embedding() differs from the embedding that the folder describes, such as "1_Pooling/config.json: pooling_mode_cls_token is true";
  // empty if it is the same, or if the folder has no modules.json.
  std::string other_embedding;
  std::vector<std::string> files;  // modules.json and the other files that were read, relative to the folder
};

// Error if modules.json is no list of modules, or names a folder outside the model's folder.
SentenceModules read_sentence_modules(const std::filesystem::path& folder);

}  // namespace polyhead::models
