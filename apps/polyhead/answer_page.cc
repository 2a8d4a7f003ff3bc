#include "answer_page.h"

#include <utility>

#include "polyhead/models/value_norms.h"
#include "training/two_sided.h"

namespace polyhead::app {
namespace {

viewer::HeadVectors page_vectors(const models::HeadVectors& of, ConstTensorView attend = {}) { return {.q = of.q, .k = of.k, .v = of.v, .attend = attend}; }

// The norms [L,N,S] of the transformed value vectors of several layers. A value vector is transformed by its head's slice of the output projection.
template <class Layers, class Member>
Tensor norms_of(const Layers& layers, Member attention, const models::HeadVectors& vectors) {
  std::vector<const nn::MultiHeadAttention*> attentions;
  for (const auto& layer : layers) attentions.push_back(&(layer.*attention));
  return models::value_norms(attentions, vectors.v);
}

}  // namespace

AnswerPage::AnswerPage(const models::TextModel& model, const std::string& given, const models::ClassifiedText& answer)
    : kind(kind_of(model.classifier.config.labels.empty() ? "rates texts" : "classifies texts", model.classifier.config)), start("#layer=0&head=0&view=read&row=0") {
  if (model.classifier.config.taught_heads > training::kNegativeHead) append(kind, cat("; trained so that pooling head ", training::kPositiveHead, " reads what is positive, head ", training::kNegativeHead, " what is negative"));
  const std::int64_t model_width = model.classifier.config.model_width;
  const viewer::Tokens tokens{.pieces = answer.text.pieces};
  const std::int64_t heads = answer.pooling.extent(0), length = answer.pooling.extent(1);
  norms.push_back(norms_of(model.classifier.encoder.layers, &nn::EncoderLayer::attention, answer.vectors));
  norms.emplace_back(DType::f32, Shape{1, heads, length});
  // The classifier's output matrix acts as the output projection of the pooling heads: each head's value vectors are multiplied by the head's slice of it.
  nn::value_norms(answer.pooling_vectors.v.view().select(0, 0), model.classifier.output, norms.back().view().select(0, 0));
  const viewer::Text encoder{.text = given, .queries = tokens, .attentions = answer.attentions, .name = "Encoder", .vectors = page_vectors(answer.vectors), .value_norms = norms[0], .width = model_width};
  text = {.text = given, .queries = {.pieces = {"[answer]"}}, .keys = tokens, .attentions = answer.pooling.view().reshape({1, heads, 1, length}), .name = "Pooling heads", .tabs = {encoder}, .vectors = page_vectors(answer.pooling_vectors), .value_norms = norms[1], .learned_queries = true};
}

AnswerPage::AnswerPage(const models::Translator& model, const std::string& given, const models::Translation& answer, bool guided) {
  viewer::Tokens source{.pieces = answer.source.pieces}, target{.pieces = answer.target.pieces};
  source.pieces.push_back("<end>");
  target.pieces.insert(target.pieces.begin(), "<start>");
  source.special.resize(source.pieces.size()), target.special.resize(target.pieces.size());
  source.special.back() = target.special.front() = true;
  const std::int64_t written = std::ssize(target.pieces), guided_layer = model.config.layers - 1;
  causal = Tensor(DType::boolean, {written, written});
  for (std::int64_t t = 0; t < written; ++t)
    for (std::int64_t s = 0; s < written; ++s) causal.data<bool>()[t * written + s] = s <= t;
  const std::int64_t model_width = model.config.model_width;
  const nn::EncoderDecoder& network = model.network;
  norms.push_back(norms_of(network.encoder.layers, &nn::EncoderLayer::attention, answer.source_vectors));
  norms.push_back(norms_of(network.decoder.layers, &nn::DecoderLayer::self_attention, answer.target_vectors));
  norms.push_back(norms_of(network.decoder.layers, &nn::DecoderLayer::cross_attention, answer.vectors));
  const viewer::Text encoder{.text = given, .queries = source, .attentions = answer.source_attentions, .name = "Encoder", .vectors = page_vectors(answer.source_vectors), .value_norms = norms[0], .width = model_width};
  const viewer::Text decoder{.text = answer.text, .queries = target, .attentions = answer.target_attentions, .name = "Decoder", .vectors = page_vectors(answer.target_vectors, causal), .value_norms = norms[1], .width = model_width};
  kind = kind_of("translator, encoder and decoder", model.config);
  if (guided) append(kind, cat("; trained so that head ", model.config.guided_head, " of the cross-attention's layer ", guided_layer, " reads the word that a word comes from"));
  start = cat("#pieces=merged&layer=", guided_layer, "&head=", model.config.guided_head);  // merge pieces into words, because the links connect words
  text = {.text = given, .queries = target, .keys = source, .attentions = answer.attentions, .name = "Cross-attention", .tabs = {encoder, decoder}, .vectors = page_vectors(answer.vectors), .value_norms = norms[2], .width = model_width};
}

}  // namespace polyhead::app
