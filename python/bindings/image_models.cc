#include "image_models.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <vector>

#include "bind.h"
#include "gil.h"
#include "named_outputs.h"
#include "options.h"
#include "polyhead/models/image_processor.h"
#include "polyhead/models/image_text_model.h"
#include "polyhead/models/value_norms.h"

// Models of images that transformers or timm saved. The Python package polyhead/models names the outputs.
namespace polyhead::python {
namespace {

struct HeldImageTextModel {
  Held<models::VisionEncoder> vision;
  Held<models::TextSide> text;
  models::SimilarityScale scale;
};

nb::dict config_of(const models::VisionConfig& c) {
  nb::dict config;
  config["model"] = c.family;
  const std::pair<const char*, std::int64_t> sizes[] = {
      {"layers", c.layers},           {"heads", c.layer.heads},       {"width", c.layer.width},         {"hidden_width", c.layer.hidden_width}, {"channels", c.channels},
      {"image_height", c.height},     {"image_width", c.width},       {"patch_height", c.patch_height}, {"patch_width", c.patch_width},         {"prefix_tokens", c.prefix_tokens()}};
  for (const auto& [name, size] : sizes) config[name] = size;
  if (!c.labels.empty()) config["labels"] = c.labels;
  return config;
}

ByName run_vision_encoder(const Held<models::VisionEncoder>& held, nb::handle pixels_given, nb::handle wanted_given, nb::handle num_threads) {
  const models::VisionEncoder& model = held.model;
  const models::VisionConfig& c = model.config;
  const Array pixels = Array::required(pixels_given, "pixels");
  std::optional<LimitedThreads> threads = read_num_threads(num_threads);
  const Shape given = pixels.view().shape(), lead = given.first(std::max(given.size() - 3, 0)), of_layers = appended({c.layers}, lead);
  const Shape rows = appended(lead, {c.tokens(), c.layer.width}), heads = appended(of_layers, {c.layer.heads, c.tokens(), c.layer.width / c.layer.heads});
  models::VisionOutput output;
  TensorView norms;
  NamedOutputs outputs(accumulation_dtype(c.layer.dtype), {{"hidden", &output.hidden, rows},
                                                           {"all_hidden", &output.all_hidden, appended({c.layers + 1}, rows)},
                                                           {"attentions", &output.attentions, appended(of_layers, {c.layer.heads, c.tokens(), c.tokens()})},
                                                           {"pooled", &output.pooled, appended(lead, {model.pooled_width()})},
                                                           {"logits", &output.logits, appended(lead, {model.classes()})},
                                                           {"embedding", &output.embedding, appended(lead, {model.embedding_width()})},
                                                           {"q", &output.q, heads},
                                                           {"k", &output.k, heads},
                                                           {"v", &output.v, heads},
                                                           {"value_norms", &norms, heads.first(heads.size() - 1)}});
  outputs.want(wanted_given);
  const ValuesForNorms values(norms, accumulation_dtype(c.layer.dtype), heads, &output.v);
  without_gil([&] {
    model.forward(pixels.view(), output, {.executor = threads ? &*threads : nullptr, .workspace = &held.workspace});
    values.write(model, threads ? &*threads : nullptr);
  });
  return outputs.take();
}

nb::dict config_of(const models::TextSideConfig& c) {
  nb::dict config;
  config["model"] = c.family;
  const std::pair<const char*, std::int64_t> sizes[] = {{"layers", c.layers},         {"heads", c.layer.heads},    {"width", c.layer.width}, {"hidden_width", c.layer.hidden_width},
                                                        {"vocabulary", c.vocabulary}, {"positions", c.positions}};
  for (const auto& [name, size] : sizes) config[name] = size;
  return config;
}

ByName run_text_side(const Held<models::TextSide>& held, nb::handle ids_given, nb::handle attend_keys_given, nb::handle wanted_given, nb::handle num_threads) {
  const models::TextSide& model = held.model;
  const models::TextSideConfig& c = model.config;
  const Array ids = Array::required(ids_given, "ids"), attend_keys = Array::input(attend_keys_given, "attend_keys");
  if (ids.view().rank() < 1) throw nb::value_error("ids has no dimension; it must be [*,T]");
  std::optional<LimitedThreads> threads = read_num_threads(num_threads);
  const Shape shape = ids.view().shape(), lead = shape.first(shape.size() - 1), rows = appended(shape, {c.layer.width}), of_layers = appended({c.layers}, lead);
  const Shape heads = appended(of_layers, {c.layer.heads, shape[-1], c.layer.width / c.layer.heads});
  models::TextSideOutput output;
  TensorView norms;
  NamedOutputs outputs(accumulation_dtype(c.layer.dtype), {{"hidden", &output.hidden, rows},
                                                           {"all_hidden", &output.all_hidden, appended({c.layers + 1}, rows)},
                                                           {"attentions", &output.attentions, appended(of_layers, {c.layer.heads, shape[-1], shape[-1]})},
                                                           {"pooled", &output.pooled, appended(lead, {model.pooled_width()})},
                                                           {"embedding", &output.embedding, appended(lead, {model.embedding_width()})},
                                                           {"q", &output.q, heads},
                                                           {"k", &output.k, heads},
                                                           {"v", &output.v, heads},
                                                           {"value_norms", &norms, heads.first(heads.size() - 1)}});
  outputs.want(wanted_given);
  const ValuesForNorms values(norms, accumulation_dtype(c.layer.dtype), heads, &output.v);
  without_gil([&] {
    model.forward({.ids = ids.view(), .attend_keys = attend_keys.view()}, output, {.executor = threads ? &*threads : nullptr, .workspace = &held.workspace});
    values.write(model, threads ? &*threads : nullptr);
  });
  return outputs.take();
}

nb::object similarity_of(const HeldImageTextModel& held, nb::handle images_given, nb::handle texts_given) {
  const Array images = Array::required(images_given, "images"), texts = Array::required(texts_given, "texts");
  if (images.view().rank() != 2 || texts.view().rank() != 2) throw nb::value_error("images and texts must be [I,P] and [J,P]");
  Tensor result(accumulation_dtype(images.view().dtype()), {images.view().extent(0), texts.view().extent(0)});
  without_gil([&] { models::similarity(images.view(), texts.view(), held.scale, result); });
  return array_of(std::move(result));
}

nb::object prepare_image(nb::handle folder, nb::handle image_given) {
  const std::string path = read_path(folder, "source");
  const Array image = Array::required(image_given, "image");
  return array_of(without_gil([&] {
    const models::ImageProcessor processor = models::read_image_processor(path);
    const Tensor seen = fitted(processor, image.view());
    return normalised(processor, seen);
  }));
}

}  // namespace

std::optional<LoadedImageModel> load_image_model(const std::filesystem::path& folder) {
  const std::optional<models::ImageModelKind> kind = models::image_model_kind(folder);
  if (!kind) return std::nullopt;
  if (*kind == models::ImageModelKind::both) {
    auto held = std::make_unique<HeldImageTextModel>();
    without_gil([&] {
      models::ImageTextModel model = models::load_image_text_model(folder);
      held->vision.model = std::move(model.vision), held->text.model = std::move(model.text);
      held->scale = model.scale;
    });
    nb::dict config;
    config["model"] = held->vision.model.config.family;
    config["vision"] = config_of(held->vision.model.config), config["text"] = config_of(held->text.model.config);
    return LoadedImageModel{"image-text-model", nb::cast(std::move(held)), config};
  }
  if (*kind == models::ImageModelKind::text) {
    auto held = load_held([&] { return models::load_text_side(folder); });
    nb::dict config = config_of(held->model.config);
    return LoadedImageModel{"text-side", nb::cast(std::move(held)), config};
  }
  auto held = load_held([&] { return models::load_vision_encoder(folder); });
  nb::dict config = config_of(held->model.config);
  return LoadedImageModel{"vision-encoder", nb::cast(std::move(held)), config};
}

void bind_image_models(nb::module_& m) {
  m.def("prepare_image", &prepare_image, any("source"), any("image"));
  nb::class_<Held<models::VisionEncoder>>(m, "VisionEncoder")
      .def("run", &run_vision_encoder, any("pixels"), any("outputs"), any("num_threads"))
      .def("parameters", &held_parameters<models::VisionEncoder>);
  nb::class_<Held<models::TextSide>>(m, "TextSide")
      .def("run", &run_text_side, any("ids"), any("attend_keys"), any("outputs"), any("num_threads"))
      .def("parameters", &held_parameters<models::TextSide>);
  nb::class_<HeldImageTextModel>(m, "ImageTextModel")
      .def_ro("vision", &HeldImageTextModel::vision)
      .def_ro("text", &HeldImageTextModel::text)
      .def_prop_ro("logit_scale", [](const HeldImageTextModel& held) { return held.scale.logit_scale; })
      .def_prop_ro("logit_bias", [](const HeldImageTextModel& held) { return held.scale.logit_bias; })
      .def("similarity", &similarity_of, any("images"), any("texts"));
}

}  // namespace polyhead::python
