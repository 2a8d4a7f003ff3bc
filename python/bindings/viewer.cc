#include "polyhead/viewer.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "bind.h"
#include "polyhead/models/sentence_model.h"

namespace polyhead::python {
namespace {

std::string page(nb::handle attentions, const std::vector<std::string>& queries, const std::optional<std::vector<std::string>>& keys, const std::string& shown,
                 const std::string& title) {
  const Array array = Array::required(attentions, "attentions");
  viewer::Text entry{.text = shown, .queries = {.pieces = queries}, .attentions = array.view()};
  if (keys) entry.keys = viewer::Tokens{.pieces = *keys};
  const nb::gil_scoped_release released;
  return viewer::render({.title = title, .texts = {std::move(entry)}});
}

// Every head of a sentence model on each text, as `polyhead view` shows it.
std::string model_page(const std::string& model_path, const std::vector<std::string>& texts, const std::optional<std::string>& pair, const std::optional<std::string>& title,
                       bool truncate) {
  const nb::gil_scoped_release released;
  const models::SentenceModel model = models::load_bert(model_path);
  const models::SentenceOptions options{.when_too_long = truncate ? models::WhenTooLong::longest_first : models::WhenTooLong::error};
  std::vector<models::SentenceResult> results;  // hold what the page's views point to
  for (const std::string& text : texts) results.push_back(pair ? model.run(text, *pair, options) : model.run(text, options));
  viewer::Page page{.title = title.value_or(texts.empty() ? "" : texts.front())};
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const models::TokenizedText& tokens = results[i].tokens;
    page.texts.push_back({.text = pair ? texts[i] + " | " + *pair : texts[i],
                          .queries = {.pieces = tokens.pieces, .special = tokens.special, .segment = tokens.segments},
                          .attentions = results[i].attentions});
  }
  return viewer::render(page);
}

}  // namespace

void bind_viewer(nb::module_& m) {
  m.def("page", &page, nb::arg("attentions").none(), nb::arg("queries"), nb::arg("keys").none(), nb::arg("text"), nb::arg("title"));
  m.def("model_page", &model_page, nb::arg("model"), nb::arg("texts"), nb::arg("pair").none(), nb::arg("title").none(), nb::arg("truncate"));
}

}  // namespace polyhead::python
