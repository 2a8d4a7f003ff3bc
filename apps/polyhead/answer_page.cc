#include "answer_page.h"

#include <utility>

#include "training/two_sided.h"

namespace polyhead::app {
namespace {

viewer::HeadVectors page_vectors(const models::HeadVectors& of, ConstTensorView attend = {}) { return {.q = of.q, .k = of.k, .v = of.v, .attend = attend}; }

}  // namespace

AnswerPage::AnswerPage(const models::TextModel& model, const std::string& given, const models::ClassifiedText& answer)
    : kind(kind_of(model.classifier.config.labels.empty() ? "rates texts" : "classifies texts", model.classifier.config)), start("#layer=0&head=0&view=read&row=0") {
  if (model.classifier.config.taught_heads > training::kNegativeHead) append(kind, cat("; trained so that pooling head ", training::kPositiveHead, " reads what is positive, head ", training::kNegativeHead, " what is negative"));
  const viewer::Tokens tokens{.pieces = answer.text.pieces};
  const std::int64_t heads = answer.pooling.extent(0), length = answer.pooling.extent(1);
  const viewer::Text encoder{.text = given, .queries = tokens, .attentions = answer.attentions, .name = "Encoder", .vectors = page_vectors(answer.vectors)};
  text = {.text = given, .queries = {.pieces = {"[answer]"}}, .keys = tokens, .attentions = answer.pooling.view().reshape({1, heads, 1, length}), .name = "Pooling heads", .tabs = {encoder}, .vectors = page_vectors(answer.pooling_vectors)};
}

AnswerPage::AnswerPage(const models::Translator& model, const std::string& given, const models::Translation& answer) {
  viewer::Tokens source{.pieces = answer.source.pieces}, target{.pieces = answer.target.pieces};
  source.pieces.push_back("<end>");
  target.pieces.insert(target.pieces.begin(), "<start>");
  source.special.resize(source.pieces.size()), target.special.resize(target.pieces.size());
  source.special.back() = target.special.front() = true;
  const std::int64_t written = std::ssize(target.pieces), guided_layer = model.config.layers - 1;
  causal = Tensor(DType::boolean, {written, written});
  for (std::int64_t t = 0; t < written; ++t)
    for (std::int64_t s = 0; s < written; ++s) causal.data<bool>()[t * written + s] = s <= t;
  const viewer::Text encoder{.text = given, .queries = source, .attentions = answer.source_attentions, .name = "Encoder", .vectors = page_vectors(answer.source_vectors)};
  const viewer::Text decoder{.text = answer.text, .queries = target, .attentions = answer.target_attentions, .name = "Decoder", .vectors = page_vectors(answer.target_vectors, causal)};
  kind = cat(kind_of("translator, encoder and decoder", model.config), "; trained so that head ", model.config.guided_head, " of the cross-attention's layer ", guided_layer, " reads the word that a word comes from");
  start = cat("#pieces=merged&layer=", guided_layer, "&head=", model.config.guided_head);  // merge pieces to words, because the links connect words
  text = {.text = given, .queries = target, .keys = source, .attentions = answer.attentions, .name = "Cross-attention", .tabs = {encoder, decoder}, .vectors = page_vectors(answer.vectors)};
}

}  // namespace polyhead::app
