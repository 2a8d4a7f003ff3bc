#include "polyhead/models/image_classifier.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "models/layer_maps.h"
#include "models/model_folder.h"
#include "models/values.h"
#include "nn/check.h"
#include "polyhead/nn/seed.h"

namespace polyhead::models {
namespace {


void check(const ImageClassifierConfig& c) {
  for (const auto& [name, value] : {std::pair("height", c.height), {"width", c.width}, {"patch", c.patch}, {"classes", c.classes}, {"model_width", c.model_width}, {"layers", c.layers}, {"heads", c.heads}})
    require(value >= 1, "ImageClassifier: ", name, " is ", value, "; it must be at least 1");
  require(c.height % c.patch == 0 && c.width % c.patch == 0, "ImageClassifier: patches of ", c.patch, " x ", c.patch, " do not divide images of ", c.height, " x ", c.width);
  require(c.white > 0, "ImageClassifier: white is ", c.white, "; it must be above 0");
}

// [B,height,width] -> [B,patches down,patches across,patch,patch]
ConstTensorView in_patches(const ImageClassifierConfig& c, ConstTensorView images) {
  const ConstTensorView rows = images.unflatten(1, {c.height / c.patch, c.patch}).unflatten(3, {c.width / c.patch, c.patch});
  return rows.transpose(2, 3);
}

}  // namespace

ImageClassifier::ImageClassifier(const ImageClassifierConfig& given) : config(given) {
  check(config);
  const auto seed = [&](std::uint64_t part) { return nn::derive_seed(config.seed, part); };
  patch = nn::Linear({.in_width = config.patch * config.patch, .out_width = config.model_width, .dtype = config.dtype, .seed = seed(0)});
  positions = nn::Embedding({.count = 1 + config.patches(), .width = config.model_width, .dtype = config.dtype, .seed = seed(1)});
  encoder = nn::Encoder({.width = config.model_width, .heads = config.heads, .norm_position = nn::NormPosition::pre, .dropout = config.dropout, .dtype = config.dtype, .seed = seed(2)}, config.layers);
  output = nn::Linear({.in_width = config.model_width, .out_width = config.classes, .dtype = config.dtype, .seed = seed(3)});
}

void ImageClassifier::forward(ConstTensorView images, TensorView logits, Saved& saved, const nn::AttentionOptions& options) const {
  nn::require_exactly("ImageClassifier.forward", {"images", images}, {images.rank() > 0 ? images.extent(0) : 0, config.height, config.width}, config.dtype);
  const Shape shape{images.extent(0), 1 + config.patches(), config.model_width};
  if (saved.x.shape() != shape) saved = {.pixels{config.dtype, {shape[0], config.patches(), config.patch * config.patch}}, .x{config.dtype, shape}, .y{config.dtype, shape}, .d_x{config.dtype, shape}, .d_y{config.dtype, shape}};
  const Shape pixels{shape[0], config.height / config.patch, config.width / config.patch, config.patch, config.patch};
  copy(in_patches(config, images), saved.pixels.view().reshape(pixels));
  fill(saved.x.view().select(1, 0), 0);
  patch.forward(saved.pixels, saved.x.view().slice(1, 1, shape[1]), {options.executor, options.workspace});
  const auto places = positions_of(shape[1]);
  positions.forward(ConstTensorView(places.data(), {shape[1]}).expand({shape[0], shape[1]}), saved.x, {nn::Write::add, options.executor});
  encoder.forward(saved.x, saved.y, options, &saved.encoder);
  output.forward(saved.y.view().select(1, 0), logits, {options.executor, options.workspace});
}

void ImageClassifier::backward(Saved& saved, ConstTensorView d_logits, ImageClassifier& gradients, const nn::RunOptions& options) const {
  const std::int64_t length = 1 + config.patches();
  fill(saved.d_y, 0);
  output.backward(saved.y.view().select(1, 0), d_logits, {.x = saved.d_y.view().select(1, 0), .parameters = &gradients.output}, options);
  encoder.backward(saved.encoder, saved.d_y, {.x = saved.d_x, .parameters = &gradients.encoder}, options);
  const auto places = positions_of(length);
  positions.backward(ConstTensorView(places.data(), {length}).expand({saved.d_x.extent(0), length}), saved.d_x, {.parameters = &gradients.positions}, options);
  patch.backward(saved.pixels, saved.d_x.view().slice(1, 1, length), {.parameters = &gradients.patch}, options);
}

ClassifiedImage classify(const ImageClassifier& model, ConstTensorView image) {
  require(image.rank() == 2, "classify: image is ", image.shape(), "; it must be [height,width]");
  Tensor pixels = Tensor::copy_of(image.unsqueeze(0), DType::f32), logits(DType::f32, {1, model.config.classes});
  for (float& x : std::span(pixels.data<float>(), static_cast<std::size_t>(pixels.numel()))) {
    require(x >= 0 && x <= static_cast<float>(model.config.white), "classify: a pixel is ", x, "; the model knows 0 to ", model.config.white);
    x /= static_cast<float>(model.config.white);
  }
  ImageClassifier::Saved saved;
  model.forward(pixels, logits, saved);
  ClassifiedImage result{.probabilities{logits.data<float>(), logits.data<float>() + logits.view().numel()}};
  softmax(result.probabilities);
  result.best = std::ranges::max_element(result.probabilities) - result.probabilities.begin();
  result.attentions = layer_maps(saved.encoder.layers, &nn::EncoderLayer::Saved::attention);
  return result;
}

void save_image_classifier(const ImageClassifier& model, const std::filesystem::path& folder) { write_model(folder, model.config, model); }

ImageClassifier load_image_classifier(const std::filesystem::path& folder) {
  return read_model<ImageClassifier, ImageClassifierConfig>(folder);
}

}  // namespace polyhead::models
