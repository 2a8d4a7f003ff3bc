// Words of a text that the built-in models do not know: what they answer about such a text means less.
#pragma once

#include <string>
#include <vector>

#include "polyhead/models/text_classifier.h"

namespace polyhead::app {

// Words, not signs, that have no score of their own in the model; each once.
std::vector<std::string> words_without_score(const models::TextModel& model, const std::vector<std::string>& words);
// Words and signs that no sentence of the teaching grammar has (grammar_words.txt); each once.
std::vector<std::string> words_outside_grammar(const std::vector<std::string>& words);

}  // namespace polyhead::app
