#include "polyhead/models/encoder_layer.h"

#include "nn/check.h"
#include "nn/elementwise.h"
#include "nn/initialise.h"

namespace polyhead::models {

using nn::require_separate;
using nn::require_shape;
using nn::require_tensor;

EncoderLayer::EncoderLayer(const EncoderLayerConfig& config) {
  nn::Initialiser initialiser(config.seed);
  const nn::LayerNormConfig norm{.width = config.width, .epsilon = config.epsilon, .dtype = config.dtype};
  attention =
      nn::MultiHeadAttention({.query_width = config.width, .heads = config.heads, .dtype = config.dtype, .seed = initialiser.child_seed()});
  attention_norm = nn::LayerNorm(norm);
  feed_forward = nn::FeedForward({.width = config.width,
                                  .hidden_width = config.hidden_width == 0 ? 4 * config.width : config.hidden_width,
                                  .activation = config.activation,
                                  .dtype = config.dtype,
                                  .seed = initialiser.child_seed()});
  output_norm = nn::LayerNorm(norm);
}

void EncoderLayer::forward(ConstTensorView x, TensorView y, const nn::AttentionOptions& options, Saved* saved) const {
  constexpr const char* kOperation = "EncoderLayer.forward";
  const DType dtype = attention_norm.weight.dtype();
  require_tensor(kOperation, {"y", y}, dtype);
  require_shape(kOperation, {"y", y}, x.shape());
  require_separate(kOperation, {"y", y}, {{"x", x}});
  nn::require_parameters_separate(kOperation, {{"y", y}}, *this);

  const auto like_x = [&] { return Tensor::uninitialised(dtype, x.shape()); };
  Tensor attention_sum = like_x(), attended = like_x(), output_sum = like_x();
  attention.forward({.query = x}, attention_sum, options, saved != nullptr ? &saved->attention : nullptr);
  nn::add(x, attention_sum, options.executor);
  attention_norm.forward(attention_sum, attended, options.executor);
  feed_forward.forward(attended, output_sum, saved != nullptr ? &saved->feed_forward : nullptr, options.executor);
  nn::add(attended, output_sum, options.executor);
  output_norm.forward(output_sum, y, options.executor);
  if (saved == nullptr) return;
  saved->attention_sum = std::move(attention_sum);
  saved->attended = std::move(attended);
  saved->output_sum = std::move(output_sum);
}

void EncoderLayer::backward(const Saved& saved, ConstTensorView d_y, TensorView d_x, EncoderLayer* grads, Executor* executor) const {
  constexpr const char* kOperation = "EncoderLayer.backward";
  const DType dtype = attention_norm.weight.dtype();
  const Shape& shape = saved.output_sum.shape();
  require_tensor(kOperation, {"d_y", d_y}, dtype);
  require_shape(kOperation, {"d_y", d_y}, shape);
  require_tensor(kOperation, {"d_x", d_x}, dtype);
  require_shape(kOperation, {"d_x", d_x}, shape);
  const ConstTensorView x = saved.attention.input.query;
  require_separate(kOperation, {"d_x", d_x}, {{"x", x}, {"d_y", d_y}});
  nn::require_parameters_separate(kOperation, {{"d_x", d_x}}, *this);
  if (grads != nullptr) nn::require_gradients(kOperation, *this, *grads, {{"x", x}, {"d_y", d_y}}, {"d_x", d_x});

  // Each sum hands its gradient to both of its terms.
  const auto like_x = [&] { return Tensor::uninitialised(dtype, shape); };
  Tensor d_output_sum = like_x(), d_attended = like_x(), d_attention_sum = like_x();
  output_norm.backward(saved.output_sum, d_y, d_output_sum, grads != nullptr ? &grads->output_norm : nullptr, nn::Write::replace, executor);
  copy(d_output_sum, d_attended);
  feed_forward.backward(saved.attended, saved.feed_forward, d_output_sum, d_attended, grads != nullptr ? &grads->feed_forward : nullptr,
                        nn::Write::add, executor);
  attention_norm.backward(saved.attention_sum, d_attended, d_attention_sum, grads != nullptr ? &grads->attention_norm : nullptr,
                          nn::Write::replace, executor);
  attention.backward(saved.attention, d_attention_sum, {.query = d_x, .parameters = grads != nullptr ? &grads->attention : nullptr},
                     executor);
  nn::add(d_attention_sum, d_x, executor);
}

}  // namespace polyhead::models
