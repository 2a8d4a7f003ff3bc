// Words of a text that the built-in models do not know. The more such words a text has, the less an answer means.
#pragma once

#include <string>
#include <vector>

#include "polyhead/models/text_classifier.h"

namespace polyhead::app {

// Returns the words, without punctuation, that are not scored terms of the model; each word once.
std::vector<std::string> words_without_score(const models::TextModel& model, const std::vector<std::string>& words);
// Returns the words and punctuation marks that no sentence of the teaching grammar contains (grammar_words.txt); each once.
std::vector<std::string> words_outside_grammar(const std::vector<std::string>& words);

}  // namespace polyhead::app
