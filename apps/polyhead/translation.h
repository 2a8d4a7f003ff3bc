// Output of `polyhead try translate`.
#pragma once

#include <cstdint>
#include <string>

#include "polyhead/models/translator.h"
#include "try_page.h"

namespace polyhead::app {

// Prints the translation, and for each of its words the source word that the guided head attends to. For a sentence of the teaching grammar it also
// prints the grammar's links. Also writes the page, if `page` has a path.
void explain_translation(const models::Translator& model, const std::string& input, const models::TranslateOptions& options, PageFile page, bool as_json);

struct TranslationScoring {
  // What is scored: "grammar" for the held-out sentences of the teaching grammar, else a file of sentence pairs or of aligned sentences.
  std::string data;
  // A file of sentence pairs. IBM model 2 learns from them, and its links are scored beside those of the heads.
  std::string baseline;
  models::TranslateOptions options{};
  bool json = false;
};
void score_translation(const models::Translator& model, const TranslationScoring& scoring);

}  // namespace polyhead::app
