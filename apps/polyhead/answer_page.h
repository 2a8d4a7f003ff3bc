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
  AnswerPage() = default;
  AnswerPage(const models::TextModel& model, const std::string& text, const models::ClassifiedText& answer);
  // guided: whether training guided the head model.config.guided_head.
  AnswerPage(const models::Translator& model, const std::string& text, const models::Translation& answer, bool guided = true);

  std::string kind;    // the kind of the model, for the reader
  viewer::Text text;   // the maps of all tabs; they are views of `answer`, `norms`, `causal` and `pixels`
  std::string start;   // the part of the page's address that selects the view with which the page opens
  std::vector<Tensor> norms = {};  // [L,N,S] of each tab: the norms of the transformed value vectors
  Tensor causal = {};  // [T,T]: the target tokens that a target token may attend to
  Tensor pixels = {};  // [height,width] in [0,1]: the image, if there is one
};

}  // namespace polyhead::app
