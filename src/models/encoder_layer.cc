#include "polyhead/models/encoder_layer.h"

#include "nn/add_norm.h"
#include "nn/check.h"
#include "nn/chunked_forward.h"
#include "nn/elementwise.h"
#include "nn/initialise.h"

namespace polyhead::models {

namespace {

// The forward pass without `saved`. Each half of the layer (attention, feed-forward) runs in chunks and normalises a chunk while its rows
// are in the second-level cache. Running both halves on one chunk before the next would be slower: each chunk reads the packed parameters,
// and the parameters of both halves together do not fit into a shared third-level cache.
void evaluate(const EncoderLayer& layer, ConstTensorView x, TensorView y, const nn::AttentionOptions& options) {
  const auto run = [&](const auto& part, ConstTensorView in, const nn::LayerNorm& norm, TensorView out) {
    part.for_each_chunk([&](Executor* executor) {
      return [&, executor, sums = Tensor()](std::int64_t chunk, auto& scratch) mutable {
        const ConstTensorView own_in = part.of(in, chunk);
        nn::reuse_or_allocate(sums, y.dtype(), own_in.shape(), options.workspace);
        part.run(chunk, sums, scratch, executor);
        nn::add_and_normalise(norm, own_in, sums, part.of(out, chunk), executor);
      };
    });
  };
  Tensor attended = uninitialised(y.dtype(), x.shape(), options.workspace);
  const nn::AttentionInput input{.query = x};
  run(nn::ChunkedAttention(layer.attention, input, options), x, layer.attention_norm, attended);
  run(nn::ChunkedFeedForward(layer.feed_forward, attended, {options.executor, options.workspace}), attended, layer.output_norm, y);
}

}  // namespace

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
  nn::require_exactly(kOperation, {"y", y}, x.shape(), dtype);
  nn::require_separate(kOperation, {"y", y}, {{"x", x}});
  nn::require_parameters_separate(kOperation, {{"y", y}}, *this);

  if (saved == nullptr) return evaluate(*this, x, y, options);
  *saved = {};  // returns the memory of an earlier pass to the workspace
  const auto like_x = [&] { return uninitialised(dtype, x.shape(), options.workspace); };
  Tensor attention_sum = like_x(), attended = like_x(), output_sum = like_x();
  attention.forward({.query = x}, attention_sum, options, &saved->attention);
  nn::add_and_normalise(attention_norm, x, attention_sum, attended, options.executor);
  feed_forward.forward(attended, output_sum, {options.executor, options.workspace}, &saved->feed_forward);
  nn::add_and_normalise(output_norm, attended, output_sum, y, options.executor);
  saved->attention_sum = std::move(attention_sum);
  saved->attended = std::move(attended);
  saved->output_sum = std::move(output_sum);
}

void EncoderLayer::backward(const Saved& saved, ConstTensorView d_y, const nn::Gradients<EncoderLayer>& gradients,
                            const nn::RunOptions& options) const {
  constexpr const char* kOperation = "EncoderLayer.backward";
  const TensorView d_x = gradients.x;
  EncoderLayer* const grads = gradients.parameters;
  const DType dtype = attention_norm.weight.dtype();
  const Shape& shape = saved.output_sum.shape();
  nn::require_exactly(kOperation, {"d_y", d_y}, shape, dtype);
  nn::require_exactly(kOperation, {"d_x", d_x}, shape, dtype);
  const ConstTensorView x = saved.attention.input.query;
  nn::require_separate(kOperation, {"d_x", d_x}, {{"x", x}, {"d_y", d_y}});
  nn::require_parameters_separate(kOperation, {{"d_x", d_x}}, *this);
  if (grads != nullptr) nn::require_gradients(kOperation, *this, *grads, {{"x", x}, {"d_y", d_y}}, {"d_x", d_x});

  // Both terms of a residual sum have the gradient of the sum.
  const auto like_x = [&] { return uninitialised(dtype, shape, options.workspace); };
  Tensor d_output_sum = like_x(), d_attended = like_x(), d_attention_sum = like_x();
  output_norm.backward(saved.output_sum, d_y, {.x = d_output_sum, .parameters = grads ? &grads->output_norm : nullptr}, options);
  copy(d_output_sum, d_attended);
  feed_forward.backward(saved.feed_forward, d_output_sum,
                        {.x = d_attended, .parameters = grads ? &grads->feed_forward : nullptr, .x_write = nn::Write::add}, options);
  attention_norm.backward(saved.attention_sum, d_attended, {.x = d_attention_sum, .parameters = grads ? &grads->attention_norm : nullptr},
                          options);
  attention.backward(saved.attention, d_attention_sum, {.query = d_x, .parameters = grads ? &grads->attention : nullptr}, options);
  nn::add(d_attention_sum, d_x, options.executor);
}

}  // namespace polyhead::models
