// The content of a page about a trained model's answer. `polyhead try -o` writes it to a file; the engine of a live page (apps/live) returns it.
#pragma once

#include <string>
#include <vector>

#include "core/text.h"
#include "polyhead/models/text_classifier.h"
#include "polyhead/models/translator.h"
#include "polyhead/viewer.h"
#include "training/figures.h"

namespace polyhead::app {

// Returns a text such as "translator, 2 layers of 4 heads".
template <class Config>
std::string kind_of(const char* name, const Config& config) {
  return cat(name, ", ", training::counted(config.layers, "layer"), " of ", training::counted(config.heads, "head"));
}

struct AnswerPage {
  AnswerPage(const models::TextModel& model, const std::string& text, const models::ClassifiedText& answer);
  AnswerPage(const models::Translator& model, const std::string& text, const models::Translation& answer);

  std::string kind;    // describes the model for the reader, such as "translator, 2 layers of 4 heads"
  viewer::Text text;   // the attention maps of all tabs, as views of `answer`, `norms` and `causal`
  std::string start;   // the part of the page's address that selects the view with which the page opens
  std::vector<Tensor> norms = {};  // for each tab [L,N,S]: the norms of the transformed value vectors
  Tensor causal = {};  // [T,T], true where a target token may attend to a target token
};

}  // namespace polyhead::app
