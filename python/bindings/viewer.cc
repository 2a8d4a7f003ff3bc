#include "polyhead/viewer.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <list>

#include "bind.h"
#include "core/index.h"
#include "core/join.h"
#include "gil.h"
#include "options.h"
#include "polyhead/models/any_text_model.h"
#include "image_page.h"
#include "measure_texts.h"
#include "polyhead/models/image_processor.h"
#include "run_page.h"

namespace polyhead::python {
namespace {

// Attention maps: one array [layers, heads, T, S], or a list with an array [heads, T, S] for each layer. Value norms have these shapes without T. Arrays may
// come from any package and have any floating dtype.
struct Maps {
  explicit Maps(nb::handle source, const char* name = "source") {
    if (!nb::isinstance<nb::list>(source)) {
      whole = Array::required(source, name);
      view = whole.view();
      return;
    }
    std::vector<Array> layers;
    for (const nb::handle layer : nb::borrow<nb::list>(source)) {
      layers.push_back(Array::required(layer, name));
      if (!is_floating(layers.back().view().dtype())) throw nb::type_error(cat(name, " must be a list of floating arrays").c_str());
    }
    const TensorView& first = layers.front().view();
    stacked = Tensor(DType::f32, appended({std::ssize(layers)}, first.shape()));
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

// Keeps the arrays alive to which the views of a page refer.
struct Kept {
  std::list<Maps> maps;
  std::vector<Array> arrays;
};

std::vector<bool> read_flags(nb::handle object, const char* name) {
  std::vector<bool> flags;
  if (object.is_none()) return flags;
  for (const nb::handle flag : object) flags.push_back(read_flag(flag, name));
  return flags;
}

std::vector<std::pair<std::int64_t, std::int64_t>> read_pairs(nb::handle object, const char* name) {
  std::vector<std::pair<std::int64_t, std::int64_t>> pairs;
  for (const nb::handle pair : object) {
    const std::vector<std::int64_t> both = read_integers(pair, name);
    pairs.emplace_back(both.at(0), both.at(1));
  }
  return pairs;
}

viewer::Tokens read_tokens(nb::handle object) {
  viewer::Tokens tokens{.pieces = read_words(object["pieces"], nb::cast<std::string>(object["label"]).c_str())};
  tokens.special = read_flags(object["special"], "special");
  for (const std::int64_t segment : read_integers(object["segments"], "segments")) tokens.segment.push_back(static_cast<int>(segment));
  return tokens;
}

// Reads a set of maps, and the further sets in its entry "tabs", from the dict that _view_sets.py makes.
viewer::Text read_set(nb::handle object, Kept& kept) {
  viewer::Text set{.text = read_word(object["text"], "text"), .queries = read_tokens(object["queries"])};
  if (const nb::object keys = object["keys"]; !keys.is_none()) set.keys = read_tokens(keys);
  set.attentions = kept.maps.emplace_back(object["attentions"]).view;
  set.name = read_word(object["name"], "name");
  if (!object["pooling"].is_none()) set.pooled = choice("pooling", read_word(object["pooling"], "pooling"), kPoolings);
  set.query_axis = read_word(object["query_axis"], "axes"), set.key_axis = read_word(object["key_axis"], "axes");
  set.block_keys = read_flags(object["block_keys"], "block_keys");
  if (!object["links"].is_none()) set.links = viewer::Links{.sure = read_pairs(object["links"], "links"), .possible = read_pairs(object["possible_links"], "possible_links")};
  if (!object["gate"].is_none()) set.gate = kept.maps.emplace_back(object["gate"]).view;
  if (const nb::object image = object["image"]; !image.is_none()) {
    kept.arrays.push_back(Array::required(image[0], "image"));
    set.image = viewer::Image{.pixels = kept.arrays.back().view(), .rows = nb::cast<std::int64_t>(image[1]), .columns = nb::cast<std::int64_t>(image[2])};
  }
  kept.arrays.push_back(Array::input(object["pair_bias"], "pair_bias"));
  if (const TensorView& bias = kept.arrays.back().view()) set.pair_bias = ConstTensorView(bias).expand(set.attentions.shape());
  const nb::dict vectors = nb::cast<nb::dict>(object["vectors"]);
  const auto given = [&](const char* name) { return vectors.contains(name) ? ConstTensorView(kept.maps.emplace_back(vectors[name], name).view) : ConstTensorView(); };
  if (vectors.size() > 0) set.vectors = viewer::HeadVectors{.q = given("q"), .k = given("k"), .v = given("v"), .bias = given("bias"), .attend = given("attend")};
  if (vectors.contains("scale")) set.vectors->scale = read_number(vectors["scale"], "scale");
  if (const nb::object norms = object["value_norms"]; !norms.is_none()) {
    set.value_norms = kept.maps.emplace_back(norms, "value_norms").view;
  }
  for (const nb::handle one : object["without"]) set.without.push_back({nb::cast<std::int64_t>(one[0]), nb::cast<std::int64_t>(one[1]), read_number(one[2], "without")});
  for (const nb::handle tab : object["tabs"]) set.tabs.push_back(read_set(tab, kept));
  return set;
}

std::string page(nb::handle texts, nb::handle title, nb::handle language, nb::handle values, nb::handle measure, nb::handle by_norms) {
  Kept kept;
  viewer::Page page{.title = read_word(title, "title"), .start = app::address("", read_flag(by_norms, "weighting")), .language = read_language(language), .vector_megabytes = read_number(values, "values")};
  if (!measure.is_none()) page.without_measure = {.name = read_word(measure[0], "without_measure"), .measured_in = read_word(measure[1], "without_measure")};
  for (const nb::handle text : texts) page.texts.push_back(read_set(text, kept));
  return without_gil([&] { return viewer::render(page); });
}

// Makes a page with the maps of every head of a text model for each text, as `polyhead view` does.
std::string model_page(nb::handle source, nb::handle text_list, nb::handle pair_object, nb::handle title_object, nb::handle truncate_flag,
                       nb::handle language_name, nb::handle megabytes, nb::handle heads, nb::handle new_tokens, nb::handle weighting, nb::handle measured_list) {
  const std::string model_path = read_path(source, "source");
  const std::vector<std::string> texts = read_words(text_list, "text");
  const std::vector<std::string> measured = measured_list.is_none() ? std::vector<std::string>() : read_words(measured_list, "texts");
  const std::optional<std::string> pair = read_optional_word(pair_object, "pair"), title = read_optional_word(title_object, "title");
  if (pair && texts.size() != 1) {
    throw nb::value_error(cat("pair is the second part of one text; there are ", texts.size(), " texts").c_str());
  }
  const bool by_norms = read_flag(weighting, "weighting");
  const bool truncate = read_flag(truncate_flag, "truncate");
  const viewer::Language language = read_language(language_name);
  const double values = read_number(megabytes, "values");
  const std::int64_t generate = read_integer(new_tokens, "generate", 0, std::int64_t{1} << 20);
  const bool all_heads = nb::isinstance<nb::str>(heads);
  std::vector<std::pair<std::int64_t, std::int64_t>> off;
  if (!heads.is_none() && !all_heads) off = read_pairs(heads, "without");
  const std::unique_ptr<models::AnyTextModel> model = without_gil([&] { return models::load_any_text_model(model_path); });
  if (const std::vector<std::string>& rules = model->sizes().rules_not_followed; generate > 0 && !rules.empty()) {
    const std::string warning = cat("view: each generated token is the likeliest one; polyhead ignores these rules of generation_config.json (or of config.json, if there is no generation_config.json): ", join(rules));
    if (PyErr_WarnEx(PyExc_UserWarning, warning.c_str(), 1) != 0) throw nb::python_error();
  }
  return without_gil([&] {
    const models::AnyTextModel::Sizes& sizes = model->sizes();
    if (by_norms && sizes.kind == models::TextModelKind::two_sides) fail(ErrorCode::unsupported, "weighting is 'norm', and polyhead keeps no values of models with an encoder and a decoder; encoders and decoders have norm-weighted maps");
    const auto when_too_long = truncate ? models::WhenTooLong::longest_first : models::WhenTooLong::error;
    for (std::int64_t layer = 0; all_heads && layer < sizes.layers; ++layer)
      for (std::int64_t head = 0; head < sizes.heads; ++head) off.emplace_back(layer, head);
    std::vector<models::TextRun> results;  // kept alive, because the page's views refer to them
    viewer::VectorBudget budget(values);
    viewer::Page page{.title = title.value_or(texts.empty() ? "" : texts.front()), .language = language, .vector_megabytes = values};
    std::vector<std::int64_t> left_out;
    std::vector<models::TokenizedText> all_tokens;
    std::vector<std::int64_t> lengths;
    for (const std::string& text : texts) lengths.push_back(std::ssize(all_tokens.emplace_back(model->tokenize(text, pair, when_too_long, generate)).ids));
    const std::vector<std::int64_t> sides = app::pooled_sides(sizes, lengths, generate);
    if (by_norms) {
      if (const auto pooled = std::ranges::find_if(sides, [](std::int64_t side) { return side != 0; }); pooled != sides.end())
        fail(ErrorCode::unsupported, "weighting is 'norm', and text ", pooled - sides.begin() + 1, " is so long that the page has pooled maps, which are not norm-weighted; give a shorter text");
    }
    page.start = app::address(measured.empty() ? "" : app::kScatter, by_norms);
    std::vector<models::TokenizedText> measured_tokens;
    for (std::size_t i = 0; i < measured.size(); ++i) {
      try {
        measured_tokens.push_back(model->tokenize(measured[i], std::nullopt, when_too_long, 0));
      } catch (const Error& error) {
        throw Error(error.code(), cat("texts[", i, "]: ", error.what()));
      }
    }
    if (!measured.empty()) page.measured = app::measure_texts(*model, std::move(measured_tokens));
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const std::int64_t numbers = sizes.head_vectors * (lengths[i] + generate);  // the number of elements of q, k and v
      const bool fits = sides[i] == 0 && budget.take(numbers);
      left_out.push_back(fits || sides[i] != 0 ? 0 : numbers);
      results.push_back(model->run(std::move(all_tokens[i]), {.attentions = sides[i] == 0, .pooled = sides[i], .head_vectors = fits, .value_norms = sides[i] == 0 && sizes.kind != models::TextModelKind::two_sides, .generate = generate}));
    }
    for (std::size_t i = 0; i < texts.size(); ++i) {
      std::vector<viewer::WithoutHead> without;
      for (const auto& [layer, head] : off) without.push_back({layer, head, model->change_without_head(results[i], layer, head)});
      page.texts.push_back(app::page_text(pair ? texts[i] + " | " + *pair : texts[i], results[i], std::move(without), left_out[i]));
    }
    return viewer::render(page);
  });
}

// Makes a page with the maps of every head of an image encoder, for each image, uint8 [height,width,3]. text: None, or a text for the model's text encoder,
// which the page shows beside each image.
std::string image_page(nb::handle source, nb::handle image_list, nb::handle names, nb::handle text_object, nb::handle title, nb::handle language_name, nb::handle megabytes, nb::handle weighting) {
  const std::string path = read_path(source, "source");
  std::vector<Array> images;
  for (const nb::handle image : image_list) images.push_back(Array::required(image, "image"));
  const std::vector<std::string> called = read_words(names, "text");
  const std::optional<std::string> text = read_optional_word(text_object, "text");
  const bool by_norms = read_flag(weighting, "weighting");
  viewer::VectorBudget budget(read_number(megabytes, "values"));
  viewer::Page page{.title = read_word(title, "title"), .language = read_language(language_name), .vector_megabytes = read_number(megabytes, "values")};
  return without_gil([&] {
    const models::VisionEncoder encoder = models::load_vision_encoder(path);
    const models::ImageProcessor processor = models::read_image_processor(path);
    app::require_page_of_images(encoder.config, std::ssize(images));
    const Workspace workspace{Parameters::constant};
    std::vector<app::SeenImage> seen;  // kept alive, because the page's views refer to them
    std::vector<Tensor> shown;
    std::optional<app::TextBeside> beside;
    if (text) {
      app::require_both_sides(path);
      const std::unique_ptr<models::AnyTextModel> side = models::load_any_text_model(path);
      beside = app::see_text_beside(path, *side, *text, side->tokenize(*text, std::nullopt, models::WhenTooLong::error), &budget, true);
    }
    for (std::size_t i = 0; i < images.size(); ++i) {
      seen.push_back(app::see_image(encoder, processor, called.at(i), images[i].view(), &budget, true, &workspace));
      shown.push_back(app::shown_pixels(encoder.config, seen.back()));
    }
    for (std::size_t i = 0; i < seen.size(); ++i) {
      page.texts.push_back(app::image_text(encoder.config, seen[i], shown[i]));
      if (beside) app::show_text_beside(*beside, seen[i], page.texts.back());
    }
    page.start = app::address(app::start_of_images(encoder.config), by_norms);
    return viewer::render(page);
  });
}

}  // namespace

void bind_viewer(nb::module_& m) {
  m.attr("most_attention_weights") = viewer::kMaxAttentionWeights;
  m.def("page", &page, any("texts"), any("title"), any("lang"), any("values"), any("without_measure"), any("weighting"));
  m.def("model_page", &model_page, any("source"), any("text"), any("pair"), any("title"), any("truncate"), any("lang"), any("values"), any("without"), any("generate"), any("weighting"), any("texts"));
  m.def("image_page", &image_page, any("source"), any("images"), any("names"), any("text"), any("title"), any("lang"), any("values"), any("weighting"));
}

}  // namespace polyhead::python
