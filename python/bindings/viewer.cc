#include "polyhead/viewer.h"

#include <nanobind/stl/string.h>

#include "bind.h"
#include "gil.h"
#include "options.h"
#include "polyhead/models/sentence_model.h"

namespace polyhead::python {
namespace {

// One [layers, heads, T, S], or a list with [heads, T, S] for each layer. Layers may come from any package and in any floating dtype.
struct Maps {
  explicit Maps(nb::handle source) {
    if (!nb::isinstance<nb::list>(source)) {
      whole = Array::required(source, "source");
      view = whole.view();
      return;
    }
    std::vector<Array> layers;
    for (const nb::handle layer : nb::borrow<nb::list>(source)) {
      layers.push_back(Array::required(layer, "source"));
      if (!is_floating(layers.back().view().dtype())) throw nb::type_error("source must be a list of floating arrays");
    }
    const TensorView& first = layers.front().view();
    stacked = Tensor(DType::f32, {std::ssize(layers), first.extent(0), first.extent(1), first.extent(2)});
    for (std::size_t i = 0; i < layers.size(); ++i) copy(layers[i].view(), stacked.view().select(0, static_cast<std::int64_t>(i)));
    view = stacked.view();
  }

  Array whole;
  Tensor stacked;
  ConstTensorView view;
};

viewer::Language read_language(nb::handle object) {
  if (object.is_none()) return viewer::Language::readers;
  constexpr Choices<viewer::Language, 2> kLanguages{{{"en", viewer::Language::english}, {"zh", viewer::Language::chinese}}};
  return choice("lang", read_word(object, "lang"), kLanguages);
}

std::string page(nb::handle weights, nb::handle tokens, nb::handle key_tokens, nb::handle text_object, nb::handle title_object, nb::handle language_name) {
  const viewer::Language language = read_language(language_name);
  const Maps maps(weights);
  const std::vector<std::string> queries = read_words(tokens, "tokens");
  const std::string shown = read_word(text_object, "text"), title = read_word(title_object, "title");
  viewer::Text entry{.text = shown, .queries = {.pieces = queries}, .attentions = maps.view};
  if (!key_tokens.is_none()) entry.keys = viewer::Tokens{.pieces = read_words(key_tokens, "keys")};
  const ReleasedGil released;
  return viewer::render({.title = title, .texts = {std::move(entry)}, .language = language});
}

// Every head of a sentence model on each text, as `polyhead view` shows it.
std::string model_page(nb::handle source, nb::handle text_list, nb::handle pair_object, nb::handle title_object, nb::handle truncate_flag,
                       nb::handle language_name) {
  const std::string model_path = read_path(source, "source");
  const std::vector<std::string> texts = read_words(text_list, "text");
  const std::optional<std::string> pair = read_optional_word(pair_object, "pair"), title = read_optional_word(title_object, "title");
  if (pair && texts.size() != 1) {
    throw nb::value_error(text("pair is the second part of one text; there are ", texts.size(), " texts").c_str());
  }
  const bool truncate = read_flag(truncate_flag, "truncate");
  const viewer::Language language = read_language(language_name);
  const ReleasedGil released;
  const models::SentenceModel model = models::load_bert(model_path);
  const models::SentenceOptions options{.when_too_long = truncate ? models::WhenTooLong::longest_first : models::WhenTooLong::error};
  std::vector<models::SentenceResult> results;  // keep alive what the page's views point to
  for (const std::string& text : texts) results.push_back(pair ? model.run(text, *pair, options) : model.run(text, options));
  viewer::Page page{.title = title.value_or(texts.empty() ? "" : texts.front()), .language = language};
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const models::TokenizedText& tokens = results[i].tokens;
    page.texts.push_back({.text = pair ? texts[i] + " | " + *pair : texts[i],
                          .queries = {.pieces = tokens.pieces, .special = tokens.special, .segment = tokens.segments, .unknown = tokens.unknown},
                          .attentions = results[i].attentions});
  }
  return viewer::render(page);
}

}  // namespace

void bind_viewer(nb::module_& m) {
  m.def("page", &page, any("source"), any("tokens"), any("keys"), any("text"), any("title"), any("lang"));
  m.def("model_page", &model_page, any("source"), any("text"), any("pair"), any("title"), any("truncate"), any("lang"));
}

}  // namespace polyhead::python
