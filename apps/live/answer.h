// What a live page asks its engine: one of the models that the library carries, and a text. The same code answers in the engine and, for tests, in a native program.
#pragma once

#include <string>

namespace polyhead::live {

// task: "sentiment" or "translate". The JSON of viewer::live_answer; its `answer` is
//   {task, unknown: [word], rating, parts: [..], score_part}                       of sentiment
//   {task, unknown: [word], translation, complete, alignment: [[word, word or null]]}  of translate
// `unknown`: words of the text that the model does not know. Error for an unknown task, an empty text, and one that is too long for the model.
std::string answer(const std::string& task, const std::string& text);

}  // namespace polyhead::live
