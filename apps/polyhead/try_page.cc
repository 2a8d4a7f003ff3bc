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

void write(const PageFile& file, const AnswerPage& page) {
  const std::string html = viewer::render({.title = clip_words(printable(file.answer), 80), .model = cat(model_name(file.model), ": ", page.kind), .texts = {page.text}, .start = page.start});
  write_html(file.path, html);
}

// The page's address that opens the mean over the heads of the last layer, with a row chosen.
std::string last_layer(std::int64_t layers, std::int64_t row) { return cat("#layer=", layers - 1, "&head=mean&row=", row); }

}  // namespace

AnswerPage answer_page(const models::ImageClassifier& model, ConstTensorView image, std::string name, const models::ClassifiedImage& answer) {
  const models::ImageClassifierConfig& c = model.config;
  const std::int64_t rows = c.height / c.patch, columns = c.width / c.patch;
  AnswerPage page;
  page.kind = kind_of("image classifier (Vision Transformer)", c), page.start = last_layer(c.layers, 0);
  page.text = {.text = std::move(name), .queries = {.pieces = {"[class]"}, .special = {true}}, .attentions = answer.attentions};
  for (std::int64_t i = 0; i < rows * columns; ++i) page.text.queries.pieces.push_back(cat(i / columns, ",", i % columns));
  page.text.queries.special.resize(page.text.queries.pieces.size());
  page.pixels = Tensor::copy_of(image, DType::f32);
  for (float& x : std::span(page.pixels.data<float>(), static_cast<std::size_t>(page.pixels.numel()))) x = std::clamp(x / static_cast<float>(c.white), 0.0F, 1.0F);
  page.text.image = viewer::Image{.pixels = page.pixels, .rows = rows, .columns = columns};
  return page;
}

AnswerPage answer_page(const models::SentenceChooser& model, std::span<const std::string> sentences, const models::ChosenSentence& answer) {
  AnswerPage page;
  page.kind = kind_of("chooses the sentence that sums a text up", model.config), page.start = last_layer(model.config.layers, answer.best);
  page.text = {.text = {}, .queries = {.pieces = {sentences.begin(), sentences.end()}}, .attentions = answer.attentions};
  for (const std::string& sentence : sentences) page.text.text += (page.text.text.empty() ? "" : " ") + sentence;
  const std::vector<std::string> taught = training::sections_of_heads(model.config.taught_heads);
  for (std::size_t head = 0; head < taught.size(); ++head) append(page.kind, cat(head == 0 ? "; trained so that head " : ", head ", head, head == 0 ? " reads " : " ", taught[head]));
  return page;
}

std::string best_class(const models::ClassifiedImage& answer) { return cat("class ", answer.best, " (probability ", fixed(answer.probabilities[static_cast<std::size_t>(answer.best)], 3), ")"); }

void write_page(const PageFile& file, const models::ImageClassifier& model, ConstTensorView image, const models::ClassifiedImage& answer) { write(file, answer_page(model, image, file.answer, answer)); }

void write_page(const PageFile& file, const models::SentenceChooser& model, std::span<const std::string> sentences, const models::ChosenSentence& answer) {
  AnswerPage page = answer_page(model, sentences, answer);
  page.text.text.clear();
  for (std::size_t s = 0; s < sentences.size(); ++s) append(page.text.text, cat(s == 0 ? "" : " ", s, " (", fixed(answer.scores[s], 2), "): ", sentences[s]));
  write(file, page);
}

void write_page(const PageFile& file, const models::TextModel& model, const std::string& text, const models::ClassifiedText& answer) {
  AnswerPage page(model, text, answer);
  if (!file.parts.empty()) append(page.kind, "; " + file.parts);
  page.start.insert(1, "pieces=merged&");  // what a head reads is shown by words, as in the terminal
  write(file, page);
}

void write_page(const PageFile& file, const models::Translator& model, const std::string& text, const models::Translation& answer, std::optional<viewer::Links> links) {
  AnswerPage page(model, text, answer);
  if (!file.parts.empty()) append(page.kind, "; " + file.parts);
  page.text.links = std::move(links);
  write(file, page);
}

}  // namespace polyhead::app
