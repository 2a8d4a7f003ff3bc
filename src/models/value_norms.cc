#include "polyhead/models/value_norms.h"

#include <vector>

#include "core/text.h"
#include "polyhead/models/bert.h"
#include "polyhead/models/image_text_model.h"
#include "polyhead/models/language_model.h"
#include "polyhead/models/vision_encoder.h"

namespace polyhead::models {
namespace {

std::vector<const nn::MultiHeadAttention*> attentions_of(const nn::Encoder& stack) {
  std::vector<const nn::MultiHeadAttention*> layers;
  layers.reserve(stack.layers.size());
  for (const nn::EncoderLayer& layer : stack.layers) layers.push_back(&layer.attention);
  return layers;
}

}  // namespace

Tensor value_norms(std::span<const nn::MultiHeadAttention* const> layers, ConstTensorView v, const nn::RunOptions& options) {
  require(!layers.empty() && v && v.rank() >= 4, "value_norms: v is ", v.shape(), " for ", layers.size(), " layers; it must be [L,*,K,T,V], with at least one layer");
  const bool precise = v.dtype() == DType::f64 || layers[0]->config.dtype == DType::f64;
  Shape shape = v.shape().first(v.rank() - 1);
  shape[-2] = layers[0]->config.heads;
  Tensor norms(precise ? DType::f64 : DType::f32, shape);
  nn::value_norms(layers, v, norms, options);
  return norms;
}

Tensor value_norms(const BertEncoder& model, ConstTensorView v, const nn::RunOptions& options) {
  std::vector<const nn::MultiHeadAttention*> layers;
  for (std::int64_t i = 0; i < model.config.layers; ++i) layers.push_back(&model.layers.at(model.parameters_of(i)).attention);
  return value_norms(layers, v, options);
}

Tensor value_norms(const LanguageModel& model, ConstTensorView v, const nn::RunOptions& options) { return value_norms(attentions_of(model.stack), v, options); }
Tensor value_norms(const TextSide& model, ConstTensorView v, const nn::RunOptions& options) { return value_norms(attentions_of(model.stack), v, options); }
Tensor value_norms(const VisionEncoder& model, ConstTensorView v, const nn::RunOptions& options) { return value_norms(attentions_of(model.stack), v, options); }

}  // namespace polyhead::models
