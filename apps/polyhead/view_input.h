// Reads the inputs of the commands that run or open a model (view, trace, try and quantise): texts from a file or standard input and their tokens, a model's
// folder, and the choice of a token.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "polyhead/models/any_text_model.h"
#include "polyhead/models/language_model.h"
#include "polyhead/models/sentence_model.h"
#include "polyhead/models/vision_encoder.h"

namespace polyhead::app {

struct InputText {
  std::string text;
  std::optional<std::string> pair;
  std::int64_t line = 0;  // the text's line in the file, from 1; 0: the text is not from a file

  std::string both() const { return pair ? text + " | " + *pair : text; }
};

// The lines of a file, or of standard input for "-", without empty lines. Error if no line is left, or for more than 64 MiB.
std::vector<InputText> read_texts(const std::string& path);

// These load an encoder, a model of any family, or an encoder of images. The error for an incomplete folder names each missing file, and a complete
// subfolder if there is one.
models::SentenceModel open_model(const std::filesystem::path& directory);
std::unique_ptr<models::AnyTextModel> open_any_model(const std::filesystem::path& directory);
// model_type of config.json; empty if there is none, or if config.json cannot be read.
std::string model_type(const std::filesystem::path& directory);
// Whether the folder holds a model that `polyhead train` made.
bool is_trained(const std::filesystem::path& directory);
// Whether the folder holds a text encoder, and neither a decoder nor a model of images. Error for an incomplete folder, as open_any_model().
bool is_encoder(const std::filesystem::path& directory);
models::VisionEncoder open_vision_encoder(const std::filesystem::path& directory);
// The kind of the text model in a folder. Error for a folder of a model of images.
models::TextModelKind kind_of_text_model(const std::filesystem::path& directory);
models::LanguageModel open_language_model(const std::filesystem::path& directory);

// The folder's name, for titles. If the folder is called "model", the name of its parent folder.
std::string model_name(const std::filesystem::path& directory);

// Tokens as they are spelled in the text: "fox" for a piece such as "Ġfox". Generated tokens are not in the text, so the mark of a space is removed from their pieces.
std::vector<std::string> words_of(const std::string& text, const models::TokenizedText& tokens);

// Returns the index of a token. `given` is the index, or a spelling that occurs once: a word of the text or the tokenizer's piece (`spelled`). UsageError if there is no
// such token, or if `given` is both an index and the spelling of another token. The message begins with `option` and calls the token `what` ("query").
std::int64_t find_token(std::string_view option, std::string_view what, const std::string& given, const std::vector<std::string>& words, const std::vector<std::string>& spelled);

// The tokens of every text. If a text has more than `longest` tokens, its end is cut off if `truncate` is set; else an Error is thrown, whose message ends in
// `remedy`. Notes on stderr say what was replaced or left out. list: the option that gave the texts, for messages.
std::vector<models::TokenizedText> tokenize(const std::function<models::TokenizedText(const InputText&)>& tokenizer, std::optional<std::int64_t> longest,
                                            const std::vector<InputText>& texts, bool truncate, std::string_view remedy = "--truncate leaves out the end", std::string_view list = {});
// The tokens of one text for an encoder. Error if the text is too long.
models::TokenizedText tokenize(const models::SentenceModel& model, const std::string& text);

}  // namespace polyhead::app
