// Computes the answer that a live page asks for: the result of one of the library's built-in models for a text. The same code runs in the page's engine and,
// for tests, in a native program.
#pragma once

#include <filesystem>
#include <string>

namespace polyhead::live {

// Opens an encoder of BERT's kind for the task "model". The file `folder`/name, if there is one, contains the model's name.
void open_model(const std::filesystem::path& folder);

// Returns the JSON of viewer::live_answer. task is "sentiment", "translate" or, after open_model(), "model"; the member `answer` is then
//   {task, unknown: [word], rating, parts: [..], score_part}                             for sentiment
//   {task, unknown: [word], omitted: [word], translation, raw_translation, complete, alignment: [[word, word or null]]}   for translate
//   {task, unknown: [], tokens}                                                          for model
// `translation` has "[word]" in place of what the model invents for an unknown word; `raw_translation` is what the model wrote, and `omitted` are the unknown words
// that `translation` shows nowhere (apps/polyhead/known_words.h). `unknown`: words of the text that the model does not know. It is empty for "model", because the page's tokens say which words an encoder does not know.
// For a text without a token, or with more than the model takes, returns {error, tokens, longest} instead: the reason, the text's number of tokens, and the model's
// limit. Error for an unknown task, and for "model" before open_model().
std::string answer(const std::string& task, const std::string& text);

}  // namespace polyhead::live
