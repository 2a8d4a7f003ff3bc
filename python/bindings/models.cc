#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind.h"
#include "gil.h"
#include "options.h"
#include "polyhead/models/default_models.h"
#include "polyhead/models/image_classifier.h"
#include "polyhead/models/model_config.h"
#include "polyhead/models/sentence_chooser.h"
#include "polyhead/models/text_classifier.h"
#include "polyhead/models/translator.h"

// Models that `polyhead train` made. models.py gives the answers their names.
namespace polyhead::python {
namespace {

nb::object array_of(Tensor&& tensor) {
  auto* const held = new Tensor(std::move(tensor));
  return numpy_view(held->view(), nb::capsule(held, [](void* p) noexcept { delete static_cast<Tensor*>(p); }));
}

nb::object array_of(const std::vector<double>& values) {
  return array_of(Tensor::copy_of(ConstTensorView(values.data(), {std::ssize(values)})));
}

// Copies by name.
template <VisitsTensors M>
ByName parameters(const M& module) {
  nb::dict result;
  module.visit([&](const std::string& name, const Tensor& tensor) { result[name.c_str()] = array_of(Tensor::copy_of(tensor)); });
  return result;
}

ByName classify_image(const models::ImageClassifier& model, nb::handle image) {
  const Array pixels = Array::required(image, "image");
  models::ClassifiedImage answer = without_gil([&] { return classify(model, pixels.view()); });
  nb::dict result;
  result["best"] = answer.best;
  result["probabilities"] = array_of(answer.probabilities);
  result["attentions"] = array_of(std::move(answer.attentions));
  return result;
}

ByName classify_text(const models::TextModel& model, nb::handle object) {
  const std::string input = read_word(object, "text");
  models::ClassifiedText answer = without_gil([&] { return classify(model, input); });
  const std::vector<std::string> labels = model.classifier.config.label_list();
  nb::dict result, probabilities;
  for (std::size_t i = 0; i < labels.size(); ++i) probabilities[labels[i].c_str()] = answer.probabilities[i];
  result["pieces"] = answer.text.pieces;
  result["rating"] = labels.empty() ? nb::cast(answer.rating) : nb::none();
  result["probabilities"] = probabilities;
  result["head_parts"] = array_of(answer.head_parts);
  result["score_part"] = answer.score_part;
  result["attentions"] = array_of(std::move(answer.attentions));
  result["pooling"] = array_of(std::move(answer.pooling));
  return result;
}

ByName translate_text(const models::Translator& model, nb::handle object, nb::handle beams) {
  const std::string input = read_word(object, "text");
  const models::TranslateOptions options{.beams = read_integer(beams, "beams", 1, 1024)};
  models::Translation answer = without_gil([&] { return translate(model, input, options); });
  const std::vector<std::string> special = models::Translator::special_tokens();
  nb::dict result;
  result["text"] = answer.text;
  result["complete"] = answer.complete;
  result["source_words"] = answer.source.words_in(input);
  result["target_words"] = answer.target.words_in(answer.text);
  result["alignment"] = answer.alignment;
  answer.source.pieces.push_back(special[models::Translator::kEnd]);
  answer.target.pieces.insert(answer.target.pieces.begin(), special[models::Translator::kStart]);
  result["source_pieces"] = answer.source.pieces;
  result["target_pieces"] = answer.target.pieces;
  result["attentions"] = array_of(std::move(answer.attentions));
  result["source_attentions"] = array_of(std::move(answer.source_attentions));
  result["target_attentions"] = array_of(std::move(answer.target_attentions));
  return result;
}

ByName choose_sentence(const models::SentenceChooser& model, nb::handle object) {
  const std::vector<std::string> sentences =
      nb::isinstance<nb::str>(object) ? models::split_sentences(read_word(object, "text")) : read_words(object, "text");
  if (sentences.empty()) throw nb::value_error("text has no sentence");
  models::ChosenSentence answer = without_gil([&] { return choose(model, sentences); });
  nb::dict result;
  result["best"] = answer.best;
  result["sentences"] = sentences;
  result["scores"] = array_of(answer.scores);
  result["attentions"] = array_of(std::move(answer.attentions));
  return result;
}

template <class M>
nb::object loaded(M (*load)(const std::filesystem::path&), const std::filesystem::path& folder) {
  return nb::cast(without_gil([&] { return load(folder); }));
}

template <class M, void (*save)(const M&, const std::filesystem::path&)>
void saved(const M& model, nb::handle folder) {
  const std::string path = read_path(folder, "folder");
  without_gil([&] { save(model, path); });
}

struct Kind {
  std::string_view type;
  nb::object (*load)(const std::filesystem::path&);
};
const std::array kKinds{
    Kind{models::ImageClassifierConfig::kModelType, [](const std::filesystem::path& folder) { return loaded(models::load_image_classifier, folder); }},
    Kind{models::TextClassifierConfig::kModelType, [](const std::filesystem::path& folder) { return loaded(models::load_text_model, folder); }},
    Kind{models::TranslatorConfig::kModelType, [](const std::filesystem::path& folder) { return loaded(models::load_translator, folder); }},
    Kind{models::SentenceChooserConfig::kModelType, [](const std::filesystem::path& folder) { return loaded(models::load_sentence_chooser, folder); }},
};

// (kind, config, model)
Tuple<nb::str, ByName, nb::object> load_model(nb::handle source, bool built_in) {
  const std::string name = read_path(source, "source");
  const std::filesystem::path folder = built_in ? models::default_model(name) : std::filesystem::path(name);
  nb::dict config;
  for (const models::ConfigEntry& entry : models::read_config(folder))
    std::visit([&](const auto& value) { config[entry.name.c_str()] = nb::cast(value); }, entry.value);
  const std::string type = config.contains("model") && nb::isinstance<nb::str>(config["model"]) ? nb::cast<std::string>(config["model"]) : "";
  const auto kind = std::ranges::find(kKinds, type, &Kind::type);
  if (kind == kKinds.end()) throw nb::value_error(text("source: '", name, "' is no folder that `polyhead train` made").c_str());
  return nb::make_tuple(type, config, kind->load(folder));
}

}  // namespace

void bind_models(nb::module_& m) {
  nb::class_<models::ImageClassifier>(m, "ImageClassifier").def("answer", &classify_image, any("image")).def("parameters", &parameters<models::ImageClassifier>)
      .def("save", &saved<models::ImageClassifier, models::save_image_classifier>, any("folder"));
  nb::class_<models::TextModel>(m, "TextClassifier").def("answer", &classify_text, any("text")).def("parameters", [](const models::TextModel& model) {
    return parameters(model.classifier);
  }).def("save", &saved<models::TextModel, models::save_text_model>, any("folder"));
  nb::class_<models::Translator>(m, "Translator").def("answer", &translate_text, any("text"), any("beams")).def("parameters", [](const models::Translator& model) {
    return parameters(model.network);
  }).def("save", &saved<models::Translator, models::save_translator>, any("folder"));
  nb::class_<models::SentenceChooser>(m, "SentenceChooser").def("answer", &choose_sentence, any("text")).def("parameters", &parameters<models::SentenceChooser>)
      .def("save", &saved<models::SentenceChooser, models::save_sentence_chooser>, any("folder"));
  m.def("default_models", &models::default_models);
  m.def("load_model", &load_model, any("source"), nb::arg("built_in"));
}

}  // namespace polyhead::python
