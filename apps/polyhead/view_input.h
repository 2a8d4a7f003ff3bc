// What `polyhead view` reads: texts from the command line, a file or standard input, and a model's folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "polyhead/models/sentence_model.h"

namespace polyhead::app {

struct InputText {
  std::string text;
  std::optional<std::string> pair;
  std::int64_t line = 0;  // of the file, from 1; 0: it is from no file
};

// The lines of a file, or of standard input for "-"; empty lines are left out. Error when there is no other.
std::vector<InputText> read_texts(const std::string& path);

// Error that names each missing file, and the folder that was probably meant.
models::SentenceModel open_model(const std::filesystem::path& directory);

// A name for people: the last part of the path that says something.
std::string model_name(const std::filesystem::path& directory);

// Tokens of every text; what was replaced or left out is said on stderr. Error that names the text where it has no tokens that the model
// takes: it is too long and `truncate` is not set.
std::vector<models::TokenizedText> tokenize(const models::SentenceModel& model, const std::vector<InputText>& texts, bool truncate);

}  // namespace polyhead::app
