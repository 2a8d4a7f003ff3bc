#include "image_page.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "core/text.h"
#include "format.h"
#include "polyhead/models/value_norms.h"
#include "run_page.h"

namespace polyhead::app {

SeenImage see_image(const models::VisionEncoder& encoder, const models::ImageProcessor& processor, std::string name, ConstTensorView image, viewer::VectorBudget* budget, bool value_norms, const Workspace* workspace) {
  const models::VisionConfig& c = encoder.config;
  SeenImage seen{.name = std::move(name), .fitted = fitted(processor, image)};
  seen.pixels = normalised(processor, seen.fitted);
  const std::int64_t tokens = c.tokens(), numbers = 3 * c.layers * tokens * c.layer.width;
  const auto made = [](const Shape& shape) { return shape[-1] == 0 ? Tensor() : Tensor(DType::f32, shape); };
  seen.attentions = made({c.layers, c.layer.heads, tokens, tokens});
  seen.hidden = made({tokens, c.layer.width});
  seen.pooled = made({encoder.pooled_width()}), seen.logits = made({encoder.classes()}), seen.embedding = made({encoder.embedding_width()});
  const bool fits = budget != nullptr && budget->take(numbers);
  seen.left_out = fits || budget == nullptr ? 0 : numbers;
  if (fits)
    for (Tensor* one : {&seen.q, &seen.k, &seen.v}) *one = made({c.layers, c.layer.heads, tokens, c.layer.width / c.layer.heads});
  Tensor values = fits || !value_norms ? Tensor() : made({c.layers, c.layer.heads, tokens, c.layer.width / c.layer.heads});  // v that is computed only for its norms
  Tensor& v = fits ? seen.v : values;
  encoder.forward(seen.pixels, {.hidden = seen.hidden, .attentions = seen.attentions, .q = seen.q, .k = seen.k, .v = v, .pooled = seen.pooled, .logits = seen.logits, .embedding = seen.embedding}, {.workspace = workspace});
  if (value_norms) seen.value_norms = models::value_norms(encoder, v, {.workspace = workspace});
  return seen;
}

void require_page_of_images(const models::VisionConfig& config, std::int64_t images) {
  const std::int64_t weights = numel({images, config.layers, config.layer.heads, config.tokens(), config.tokens()});
  require(weights <= viewer::kMaxAttentionWeights, "a page holds at most ", viewer::kMaxAttentionWeights, " attention weights and these ", images, images == 1 ? " image has " : " images have ", weights, "; give fewer images (arrays without a page have no such limit)");
}

std::string label_of_class(const models::VisionConfig& config, std::int64_t index) {
  return index < std::ssize(config.labels) ? config.labels[static_cast<std::size_t>(index)] : cat("class ", index);
}

std::vector<std::int64_t> best_classes(const SeenImage& seen, std::size_t most) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(seen.logits ? seen.logits.numel() : 0));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](std::int64_t i) { return seen.logits.data<float>()[i]; });
  order.resize(std::min(order.size(), most));
  return order;
}

Tensor shown_pixels(const models::VisionConfig& config, const SeenImage& seen) {
  const ConstTensorView covered = seen.fitted.view().slice(0, 0, config.rows() * config.patch_height).slice(1, 0, config.columns() * config.patch_width);
  return models::normalised({.factor = 1.0 / 255, .normalise = false}, covered);  // [3,height,width]
}

viewer::Text image_text(const models::VisionConfig& config, const SeenImage& seen, const Tensor& shown) {
  viewer::Text text{.text = seen.name, .attentions = seen.attentions, .value_norms = seen.value_norms, .width = config.layer.width, .left_out = seen.left_out};
  if (seen.logits) append(text.text, cat(": ", label_of_class(config, best_classes(seen, 1)[0])));
  if (config.class_token) text.queries.pieces.emplace_back("[class]");
  if (config.distillation_token) text.queries.pieces.emplace_back("[distillation]");
  for (std::int64_t i = 1; i <= config.registers; ++i) text.queries.pieces.push_back(cat("[register ", i, "]"));
  text.queries.special.assign(static_cast<std::size_t>(config.tokens()), false);
  std::fill_n(text.queries.special.begin(), config.prefix_tokens(), true);
  for (std::int64_t i = 0; i < config.patches(); ++i) text.queries.pieces.push_back(cat(i / config.columns(), ",", i % config.columns()));
  text.image = viewer::Image{.pixels = shown.view().move_axis(0, 2), .rows = config.rows(), .columns = config.columns()};
  if (seen.q) text.vectors = {.q = seen.q, .k = seen.k, .v = seen.v};
  return text;
}

std::string start_of_images(const models::VisionConfig& config) { return cat("#layer=", config.layers - 1, "&head=mean", config.class_token ? "&row=0" : ""); }

void require_both_sides(const std::string& model) {
  if (models::image_model_kind(model) != models::ImageModelKind::both)
    fail(ErrorCode::unsupported, "'", model, "' is not a model with an image encoder and a text encoder, such as CLIP or SigLIP; only such a model takes an image and a text together");
}

TextBeside see_text_beside(const std::string& model, const models::AnyTextModel& side, const std::string& text, models::TokenizedText tokens, viewer::VectorBudget* budget, bool value_norms) {
  const std::int64_t numbers = side.sizes().head_vectors * std::ssize(tokens.ids);
  const bool fits = budget != nullptr && budget->take(numbers);
  TextBeside beside{.text = text, .run = side.run(std::move(tokens), {.head_vectors = fits, .value_norms = value_norms}), .left_out = fits || budget == nullptr ? 0 : numbers};
  const models::ImageTextModel both = models::load_image_text_model(model);
  // A text encoder whose embedding is that of the last token was trained on texts padded to one length; this text is not padded, so its similarity would be wrong.
  if (both.text.config.pooling != models::TextPooling::last && both.vision.embedding_width() > 0 && beside.run.embedding) beside.scale = both.scale;
  return beside;
}

std::optional<double> similarity_to(const TextBeside& beside, const SeenImage& seen) {
  if (!beside.scale) return std::nullopt;
  Tensor result(DType::f32, {1, 1});
  models::similarity(seen.embedding.view().unsqueeze(0), beside.run.embedding.view().unsqueeze(0), *beside.scale, result);
  return result.data<float>()[0];
}

void show_text_beside(const TextBeside& beside, const SeenImage& seen, viewer::Text& image) {
  if (const auto fit = similarity_to(beside, seen)) append(image.text, cat(": ", fixed(*fit, 2), " to the text"));
  image.name = "Image";
  image.tabs.push_back(page_text(beside.text, beside.run, {}, beside.left_out));
  image.tabs.back().name = "Text";
}

}  // namespace polyhead::app
