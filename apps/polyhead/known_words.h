// Words of a text that the built-in models do not know. The more such words a text has, the less an answer means.
#pragma once

#include <string>
#include <vector>

#include "polyhead/models/text_classifier.h"
#include "polyhead/models/translator.h"

namespace polyhead::app {

// Returns the words, without punctuation, that are not scored terms of the model; each word once.
std::vector<std::string> words_without_score(const models::TextModel& model, const std::vector<std::string>& words);
// Returns the words and punctuation marks that no sentence of the teaching grammar contains (grammar_words.txt); each once.
std::vector<std::string> words_outside_grammar(const std::vector<std::string>& words);

// A translation in which "[food]" replaces what the model invents for an unknown source word "food".
struct MarkedTranslation {
  std::string text;
  std::vector<bool> invented;        // for each word of the model's own translation: true if "[...]" replaces it
  std::vector<std::string> omitted;  // the unknown words that the translation shows nowhere
};
// A word of the translation is invented if the source word that the guided head reads most for it (Translation::alignment) is one of `unknown`. Neighbouring
// words that read the same place of the source share one "[...]". `source`: the text that was translated.
MarkedTranslation mark_unknown_words(const models::Translation& answer, const std::string& source, const std::vector<std::string>& unknown);

}  // namespace polyhead::app
