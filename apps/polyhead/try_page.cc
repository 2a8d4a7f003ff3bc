#include "try_page.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "answer_page.h"
#include "core/text.h"
#include "format.h"
#include "terminal.h"
#include "text_layout.h"
#include "training/sections.h"
#include "view_input.h"
#include "view_output.h"

namespace polyhead::app {
namespace {

void write(const PageFile& file, const std::string& kind, viewer::Text text, std::string start = {}) {
  const std::string html = viewer::render({.title = clip_words(printable(file.answer), 80), .model = cat(model_name(file.model), ": ", kind), .texts = {std::move(text)}, .start = std::move(start)});
  write_html(file.path, html);
}

// The page's address that opens the mean over the heads of the last layer, with the first row chosen.
std::string last_layer(std::int64_t layers) { return cat("#layer=", layers - 1, "&head=mean&row=0"); }

}  // namespace

void write_page(const PageFile& file, const models::ImageClassifier& model, ConstTensorView image, const models::ClassifiedImage& answer) {
  const models::ImageClassifierConfig& c = model.config;
  const std::int64_t rows = c.height / c.patch, columns = c.width / c.patch;
  viewer::Text text{.text = file.answer, .queries = {.pieces = {"[class]"}, .special = {true}}, .attentions = answer.attentions};
  for (std::int64_t i = 0; i < rows * columns; ++i) text.queries.pieces.push_back(cat(i / columns + 1, ",", i % columns + 1));
  text.queries.special.resize(text.queries.pieces.size());
  Tensor pixels = Tensor::copy_of(image, DType::f32);
  for (float& x : std::span(pixels.data<float>(), static_cast<std::size_t>(pixels.numel()))) x = std::clamp(x / static_cast<float>(c.white), 0.0F, 1.0F);
  text.image = viewer::Image{.pixels = pixels, .rows = rows, .columns = columns};
  write(file, kind_of("image classifier (Vision Transformer)", c), std::move(text), last_layer(c.layers));
}

void write_page(const PageFile& file, const models::SentenceChooser& model, std::span<const std::string> sentences, const models::ChosenSentence& answer) {
  viewer::Text text{.text = {}, .queries = {.pieces = {sentences.begin(), sentences.end()}}, .attentions = answer.attentions};
  for (const std::string& sentence : sentences) text.text += (text.text.empty() ? "" : " ") + sentence;
  std::string kind = kind_of("chooses the sentence that sums a text up", model.config);
  const std::vector<std::string> taught = training::sections_of_heads(model.config.taught_heads);
  for (std::size_t head = 0; head < taught.size(); ++head) append(kind, cat(head == 0 ? "; trained so that head " : ", head ", head, head == 0 ? " reads " : " ", taught[head]));
  write(file, kind, std::move(text), cat("#layer=", model.config.layers - 1, "&head=mean&row=", answer.best));
}

void write_page(const PageFile& file, const models::TextModel& model, const std::string& text, const models::ClassifiedText& answer) {
  const AnswerPage page(model, text, answer);
  write(file, page.kind, page.text, page.start);
}

void write_page(const PageFile& file, const models::Translator& model, const std::string& text, const models::Translation& answer, std::optional<viewer::Links> links) {
  AnswerPage page(model, text, answer);
  page.text.links = std::move(links);
  write(file, page.kind, page.text, page.start);
}

}  // namespace polyhead::app
