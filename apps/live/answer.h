// Computes the answer that a live page asks for: the result of one of the library's built-in models for a text. The same code runs in the page's engine and,
// for tests, in a native program.
#pragma once

#include <string>

namespace polyhead::live {

// Returns the JSON of viewer::live_answer. task is "sentiment" or "translate"; the member `answer` is then
//   {task, unknown: [word], rating, parts: [..], score_part}                             for sentiment
//   {task, unknown: [word], translation, complete, alignment: [[word, word or null]]}   for translate
// `unknown`: words of the text that the model does not know. Error for an unknown task, an empty text, and a text that is too long for the model.
std::string answer(const std::string& task, const std::string& text);

}  // namespace polyhead::live
