#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "bind.h"
#include "gil.h"
#include "image_models.h"
#include "named_outputs.h"
#include "options.h"
#include "polyhead/models/bert.h"
#include "polyhead/models/default_models.h"
#include "polyhead/models/image_classifier.h"
#include "polyhead/models/language_model.h"
#include "polyhead/models/model_config.h"
#include "polyhead/models/model_families.h"
#include "polyhead/models/sentence_chooser.h"
#include "polyhead/models/sequence_to_sequence_model.h"
#include "polyhead/models/text_classifier.h"
#include "polyhead/models/translator.h"
#include "polyhead/models/value_norms.h"

// Bindings of models: those that `polyhead train` made, and text models in folders of transformers. The Python package polyhead/models names the outputs.
namespace polyhead::python {
namespace {

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

// Runs a text encoder, and returns the outputs whose names are in `wanted_given`: float64 if the model is float64, else float32.
ByName run_text_encoder(const Held<models::BertEncoder>& held, nb::handle ids_given, nb::handle segments_given, nb::handle attend_keys_given, nb::handle wanted_given, nb::handle num_threads) {
  const models::BertConfig& config = held.model.config;
  const Array ids = Array::required(ids_given, "ids"), segments = Array::input(segments_given, "segments"), attend_keys = Array::input(attend_keys_given, "attend_keys");
  if (ids.view().rank() < 1) throw nb::value_error("ids has no dimension; it must be [*,T]");
  std::optional<LimitedThreads> threads = read_num_threads(num_threads);
  const Shape shape = ids.view().shape(), lead = shape.first(shape.size() - 1);
  const DType dtype = accumulation_dtype(config.dtype);
  const Shape rows = appended(shape, {config.width}), of_layers = appended({config.layers}, lead), heads = appended(of_layers, {config.heads, shape[-1], config.width / config.heads});
  models::BertOutput output;
  TensorView norms;
  NamedOutputs outputs(dtype, {{"hidden", &output.hidden, rows, config.dtype},
                               {"all_hidden", &output.all_hidden, appended({config.layers + 1}, rows), config.dtype},
                               {"attentions", &output.attentions, appended(of_layers, {config.heads, shape[-1], shape[-1]})},
                               {"q", &output.q, heads},
                               {"k", &output.k, heads},
                               {"v", &output.v, heads},
                               {"value_norms", &norms, heads.first(heads.size() - 1)}});
  outputs.want(wanted_given);
  const ValuesForNorms values(norms, dtype, heads, &output.v);
  without_gil([&] {
    held.model.forward({.ids = ids.view(), .segments = segments.view(), .attend_keys = attend_keys.view()}, output, {.executor = threads ? &*threads : nullptr, .workspace = &held.workspace});
    values.write(held.model, threads ? &*threads : nullptr);
    outputs.convert();
  });
  return outputs.take();
}

// Runs a language model, and returns the outputs whose names are in `wanted_given`: float64 if the model is float64, else float32.
ByName run_language_model(const Held<models::LanguageModel>& held, nb::handle ids_given, nb::handle attend_keys_given, nb::handle wanted_given, nb::handle num_threads) {
  const models::LanguageModelConfig& config = held.model.config;
  const Array ids = Array::required(ids_given, "ids"), attend_keys = Array::input(attend_keys_given, "attend_keys");
  if (ids.view().rank() < 1) throw nb::value_error("ids has no dimension; it must be [*,T]");
  std::optional<LimitedThreads> threads = read_num_threads(num_threads);
  const Shape shape = ids.view().shape(), lead = shape.first(shape.size() - 1);
  const nn::LayerConfig& layer = config.layer;
  const Shape rows = appended(shape, {layer.width}), heads = appended(lead, {layer.heads, shape[-1], layer.head_width}), kv_heads = appended(lead, {layer.kv_heads, shape[-1], layer.head_width});
  models::LanguageOutput output;
  TensorView norms;
  NamedOutputs outputs(accumulation_dtype(layer.dtype), {{"logits", &output.logits, appended(shape, {config.vocabulary})},
                                                         {"hidden", &output.hidden, rows},
                                                         {"all_hidden", &output.all_hidden, appended({config.layers + 1}, rows)},
                                                         {"attentions", &output.attentions, appended(appended({config.layers}, lead), {layer.heads, shape[-1], shape[-1]})},
                                                         {"q", &output.q, appended({config.layers}, heads)},
                                                         {"k", &output.k, appended({config.layers}, kv_heads)},
                                                         {"v", &output.v, appended({config.layers}, kv_heads)},
                                                         {"value_norms", &norms, appended(appended({config.layers}, lead), {layer.heads, shape[-1]})}});
  outputs.want(wanted_given);
  const ValuesForNorms values(norms, accumulation_dtype(layer.dtype), appended({config.layers}, kv_heads), &output.v);
  without_gil([&] {
    held.model.forward({.ids = ids.view(), .attend_keys = attend_keys.view()}, output, {.executor = threads ? &*threads : nullptr, .workspace = &held.workspace});
    values.write(held.model, threads ? &*threads : nullptr);
  });
  return outputs.take();
}

ByName run_sequence_model(const Held<models::SequenceToSequenceModel>& held, nb::handle source_given, nb::handle target_given, nb::handle attend_source_given, nb::handle attend_target_given, nb::handle wanted_given,
                          nb::handle num_threads) {
  const models::SequenceToSequenceConfig& config = held.model.config;
  const Array source = Array::required(source_given, "source"), target = Array::input(target_given, "target");
  const Array attend_source = Array::input(attend_source_given, "attend_source"), attend_target = Array::input(attend_target_given, "attend_target");
  const bool heard = config.features > 0;
  if (source.view().rank() < (heard ? 2 : 1)) throw nb::value_error(heard ? "source has fewer than two dimensions; it must be features [*,M,F]" : "source has no dimension; it must be [*,S]");
  if (target.view() && target.view().rank() < 1) throw nb::value_error("target has no dimension; it must be [*,T]");
  std::optional<LimitedThreads> threads = read_num_threads(num_threads);
  const Shape given = source.view().shape(), lead = given.first(given.size() - (heard ? 2 : 1)), sources = appended(lead, {heard ? config.source_positions : given[-1]}), targets = target.view() ? target.view().shape() : appended(lead, {0});
  if (targets.first(targets.size() - 1) != lead) throw nb::value_error(cat("source is ", sources, " and target ", targets, "; their leading dimensions must be the same").c_str());
  const std::int64_t keys = sources[-1], tokens = targets[-1], width = config.encoder.width, encoder_layers = config.encoder_layers, decoder_layers = config.decoder_layers;
  models::SourceOutput encoded;
  models::TargetOutput decoded;
  const Shape of_encoder = appended({encoder_layers}, lead), of_decoder = appended({decoder_layers}, lead);
  NamedOutputs outputs(accumulation_dtype(config.encoder.dtype), {{"logits", &decoded.logits, appended(targets, {config.target_vocabulary})},
                                                                 {"memory", &encoded.memory, appended(sources, {width})},
                                                                 {"encoder_hidden", &encoded.all_hidden, appended({encoder_layers + 1}, appended(sources, {width}))},
                                                                 {"decoder_hidden", &decoded.all_hidden, appended({decoder_layers + 1}, appended(targets, {width}))},
                                                                 {"encoder_attentions", &encoded.attentions, appended(of_encoder, {config.encoder.heads, keys, keys})},
                                                                 {"decoder_attentions", &decoded.attentions, appended(of_decoder, {config.decoder.heads, tokens, tokens})},
                                                                 {"cross_attentions", &decoded.cross_attentions, appended(of_decoder, {config.decoder.heads, tokens, keys})}});
  outputs.want(wanted_given);
  const bool decodes = decoded.logits || decoded.all_hidden || decoded.attentions || decoded.cross_attentions;
  if (!target.view() && attend_target.view()) throw nb::value_error("attend_target is given without a target");
  if (decodes && !target.view()) throw nb::value_error("target is missing; only memory, encoder_hidden and encoder_attentions need none");
  if (!decodes && target.view()) throw nb::value_error("target is given, but no entry of outputs needs a target; logits, decoder_hidden, decoder_attentions and cross_attentions do");
  without_gil([&] {
    const models::SequenceToSequenceOptions options{.executor = threads ? &*threads : nullptr, .workspace = &held.workspace};
    Tensor memory;  // the encoder's output in the model's dtype
    if (!encoded.memory || encoded.memory.dtype() != config.encoder.dtype) memory = Tensor::uninitialised(config.encoder.dtype, appended(sources, {width}));
    models::SourceOutput output = encoded;
    if (memory) output.memory = memory;
    held.model.encode({.ids = heard ? ConstTensorView() : source.view(), .features = heard ? source.view() : ConstTensorView(), .attend_keys = attend_source.view()}, output, options);
    if (memory && encoded.memory) copy(memory, encoded.memory);
    if (decodes) held.model.decode({.ids = target.view(), .attend_keys = attend_target.view(), .memory = output.memory, .attend_memory = attend_source.view()}, decoded, options);
  });
  return outputs.take();
}

// Reads the options of generate() and calls run(options) without the GIL. The GIL is taken only while on_token runs.
template <class F>
std::vector<std::int64_t> generate_tokens(const ByName& given, const Workspace& workspace, const F& run) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  models::GenerateOptions options{.max_tokens = read_integer(given["max_tokens"], "max_tokens", 1, kMost)};
  if (nb::handle temperature = given["temperature"]; !temperature.is_none()) options.temperature = read_number(temperature, "temperature");
  options.top_k = read_integer(given["top_k"], "top_k", 0, kMost);
  options.top_p = read_number(given["top_p"], "top_p");
  if (nb::handle seed = given["seed"]; !seed.is_none()) options.seed = read_seed(seed);
  options.stop_tokens = read_integers(given["stop_tokens"], "stop_tokens");
  options.ignore_end = read_flag(given["ignore_end"], "ignore_end");
  if (nb::handle dtype = given["cache_dtype"]; !dtype.is_none()) options.cache_dtype = dtype_named(read_word(dtype, "cache_dtype"));
  std::optional<LimitedThreads> threads = read_num_threads(given["num_threads"]);
  const nb::object on_token = given["on_token"];
  if (!on_token.is_none() && PyCallable_Check(on_token.ptr()) == 0) throw nb::type_error("on_token must be a function of a token, or None");
  std::optional<nb::python_error> raised;  // the exception that on_token raised
  if (!on_token.is_none()) {
    options.on_token = [&](std::int64_t id) {
      const TakenGil taken;
      try {
        return !on_token(id).is(nb::handle(Py_False));
      } catch (nb::python_error& error) {
        raised.emplace(error);
        return false;
      }
    };
  }
  options.executor = threads ? &*threads : nullptr;
  options.workspace = &workspace;
  std::vector<std::int64_t> answer = without_gil([&] { return run(options); });
  if (raised) throw nb::python_error(*raised);
  return answer;
}

std::vector<std::int64_t> continue_text(const Held<models::LanguageModel>& held, nb::handle ids_given, const ByName& given) {
  const std::vector<std::int64_t> prompt = read_integers(ids_given, "ids");
  return generate_tokens(given, held.workspace, [&](const models::GenerateOptions& options) { return held.model.generate(prompt, options); });
}

std::vector<std::int64_t> write_target(const Held<models::SequenceToSequenceModel>& held, nb::handle source_given, nb::handle prompt_given, const ByName& given) {
  const std::vector<std::int64_t> prompt = read_integers(prompt_given, "prompt");
  if (held.model.config.features > 0) {
    const Array features = Array::required(source_given, "source");
    return generate_tokens(given, held.workspace, [&](const models::GenerateOptions& options) { return held.model.generate({.features = features.view()}, options, prompt); });
  }
  const std::vector<std::int64_t> source = read_integers(source_given, "source");
  return generate_tokens(given, held.workspace, [&](const models::GenerateOptions& options) { return held.model.generate(source, options, prompt); });
}

constexpr std::string_view kLanguageModel = "language-model", kSequenceModel = "sequence-to-sequence-model", kTextEncoder = "text-encoder";

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

// Loads a model and returns (kind, config, model).
Tuple<nb::str, ByName, nb::any> load_model(nb::handle source, bool built_in, nb::handle ignored_keys) {
  const models::LanguageLoadOptions options{.ignored_keys = read_words(ignored_keys, "ignored_keys")};
  const std::string name = read_path(source, "source");
  const std::filesystem::path folder = built_in ? models::default_model(name) : std::filesystem::path(name);
  nb::dict config;
  for (const models::ConfigEntry& entry : models::read_config(folder))
    std::visit([&](const auto& value) { config[entry.name.c_str()] = nb::cast(value); }, entry.value);
  const std::string type = config.contains("model") && nb::isinstance<nb::str>(config["model"]) ? nb::cast<std::string>(config["model"]) : "";
  const std::vector<std::string_view> decoders = models::language_families();
  if (std::ranges::find(decoders, type) != decoders.end())
    return nb::make_tuple(std::string(kLanguageModel), config, nb::cast(load_held([&] { return models::load_language_model(folder, options); })));
  const std::vector<std::string_view> two_sided = models::sequence_to_sequence_families();
  if (std::ranges::find(two_sided, type) != two_sided.end())
    return nb::make_tuple(std::string(kSequenceModel), config, nb::cast(load_held([&] { return models::load_sequence_to_sequence_model(folder, options); })));
  if (!options.ignored_keys.empty()) throw nb::value_error(cat("ignored_keys is given; '", name, "' is no language model").c_str());
  const std::vector<std::string_view> encoders = models::encoder_families();
  if (std::ranges::find(encoders, type) != encoders.end())
    return nb::make_tuple(std::string(kTextEncoder), config, nb::cast(load_held([&] { return models::load_bert_encoder(folder); })));
  if (std::optional<LoadedImageModel> images = load_image_model(folder)) return nb::make_tuple(images->kind, images->config, images->model);
  const auto kind = std::ranges::find(kKinds, type, &Kind::type);
  if (kind == kKinds.end() && !type.empty() && !type.starts_with("polyhead-")) models::read_bert_config(folder / "config.json");  // throws an Error that lists the model types that polyhead reads
  if (kind == kKinds.end()) throw nb::value_error(cat("source: '", name, "' is no folder that `polyhead train` made").c_str());
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
  nb::class_<Held<models::BertEncoder>>(m, "TextEncoder")
      .def("run", &run_text_encoder, any("ids"), any("segments"), any("attend_keys"), any("outputs"), any("num_threads"))
      .def("parameters", &held_parameters<models::BertEncoder>);
  nb::class_<Held<models::LanguageModel>>(m, "LanguageModel")
      .def("run", &run_language_model, any("ids"), any("attend_keys"), any("outputs"), any("num_threads"))
      .def("generate", &continue_text, any("ids"), nb::arg("options"))
      .def_prop_ro("rules_not_followed", [](const Held<models::LanguageModel>& held) { return held.model.config.answer.rules_not_followed; })
      .def("parameters", &held_parameters<models::LanguageModel>);
  nb::class_<Held<models::SequenceToSequenceModel>>(m, "SequenceToSequenceModel")
      .def("run", &run_sequence_model, any("source"), any("target"), any("attend_source"), any("attend_target"), any("outputs"), any("num_threads"))
      .def("generate", &write_target, any("source"), any("prompt"), nb::arg("options"))
      .def_prop_ro("rules_not_followed", [](const Held<models::SequenceToSequenceModel>& held) { return held.model.config.answer.rules_not_followed; })
      .def("parameters", &held_parameters<models::SequenceToSequenceModel>);
  m.def("default_models", &models::default_models);
  m.def("model_families", []() -> nb::typed<nb::list, Tuple<nb::str, nb::str, nb::str>> {
    nb::list rows;
    const auto word = [](std::string_view text) { return nb::str(text.data(), text.size()); };
    for (const models::ModelFamily& family : models::model_families()) rows.append(nb::make_tuple(word(family.kind), word(family.model_type), word(family.refused)));
    return rows;
  });
  m.def("load_model", &load_model, any("source"), nb::arg("built_in"), any("ignored_keys"));
}

}  // namespace polyhead::python
