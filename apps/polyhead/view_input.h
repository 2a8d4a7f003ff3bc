// The inputs of `polyhead view`: texts from the command line, a file or standard input, and a model's folder.
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
  std::int64_t line = 0;  // its line in the file, from 1; 0: the text is not from a file

  std::string both() const { return pair ? text + " | " + *pair : text; }
};

// The lines of a file, or of standard input for "-", without empty lines. Error if no line is left, or for more than 64 MiB.
std::vector<InputText> read_texts(const std::string& path);

// Loads the model. The error for an incomplete folder names each missing file, and a subfolder that is complete if there is one.
models::SentenceModel open_model(const std::filesystem::path& directory);

// The folder's name, for titles. If the folder is called "model", the name of its parent folder.
std::string model_name(const std::filesystem::path& directory);

// The tokens of every text. Notes on stderr say what was replaced or left out. Error if a text is too long and `truncate` is not set.
std::vector<models::TokenizedText> tokenize(const models::SentenceModel& model, const std::vector<InputText>& texts, bool truncate);

}  // namespace polyhead::app
