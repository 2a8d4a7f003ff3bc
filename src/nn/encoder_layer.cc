#include "polyhead/nn/encoder_layer.h"

#include "nn/attention_weights_gradient.h"
#include "nn/check.h"
#include "nn/chunked_forward.h"
#include "nn/residual.h"
#include "nn/stack.h"
#include "polyhead/nn/stack_cache.h"

namespace polyhead::nn {
namespace {

// The forward pass of a post-norm layer, without dropout and `saved`. Attention runs in chunks, then the feed-forward network; each normalises a chunk while
// its rows are in the second-level cache. Running both on one chunk before the next chunk would be slower: every chunk reads the packed parameters, and the
// parameters of both together do not fit into a shared third-level cache.
void evaluate(const EncoderLayer& layer, ConstTensorView x, TensorView y, const AttentionOptions& options) {
  const auto run = [&](const auto& part, ConstTensorView in, const Norm& norm, TensorView out) {
    part.for_each_chunk([&](Executor* executor) {
      return [&, executor, sums = Tensor()](std::int64_t chunk, auto& scratch) mutable {
        const ConstTensorView own_in = part.of(in, chunk);
        reuse_or_allocate(sums, y.dtype(), own_in.shape(), options.workspace);
        part.run(chunk, sums, scratch, executor);
        add_and_normalise(norm, own_in, sums, part.of(out, chunk), executor);
      };
    });
  };
  Tensor attended = uninitialised(y.dtype(), x.shape(), options.workspace);
  const AttentionInput input{.query = x};
  run(ChunkedAttention(layer.attention, input, options), x, layer.attention_norm, attended);
  run(ChunkedFeedForward(layer.feed_forward, attended, {options.executor, options.workspace}), attended, layer.feed_forward_norm, y);
}

// Error if a call with a cache and several tokens does not say whether a token attends to later tokens. An encoder's mask is not causal by default, so the
// caller must say it.
void require_order(const char* operation, const AttentionOptions& options, ConstTensorView x) {
  const Mask& mask = options.mask;
  const auto by_query = [](const ConstTensorView& view) { return view && view.rank() >= 2 && view.extent(-2) > 1; };
  const bool told = options.attend_later_tokens || mask.causal || mask.window.right || by_query(mask.attend) || by_query(mask.block) || by_query(mask.blocks.lists);
  require(told || x.rank() != 3 || x.extent(1) <= 1, operation, ": ", x.rank() == 3 ? x.extent(1) : 0,
          " tokens with a cache, and the mask does not say whether a token attends to later tokens; set .mask = {.causal = Causal::top_left()}, or "
          "attend_later_tokens");
}

void require_members(const char* operation, const EncoderLayer& layer) {
  require_part_order(operation, layer.part_order, layer.norm_position);
  require_output_norms(operation, layer.norm_position, {{"attention_output_norm", &layer.attention_output_norm}, {"feed_forward_output_norm", &layer.feed_forward_output_norm}});
  require(!layer.mixture || !layer.feed_forward.hidden.weight, operation, ": the layer has a mixture and a feed_forward; it must have one of them, so clear the other");
}

}  // namespace

EncoderLayer::EncoderLayer(const LayerConfig& config) : norm_position(config.norm_position.value_or(NormPosition::post)), part_order(config.part_order), dropout(config.dropout) {
  constexpr const char* kOperation = "EncoderLayer";
  const std::uint64_t seed = config.seed;
  require_dropout(kOperation, config.dropout);
  require(config.memory_width == 0, kOperation, ": memory_width is ", config.memory_width, "; an encoder layer reads no memory, so it must be 0");
  const NormConfig norm{.width = config.width, .kind = config.norm, .epsilon = config.epsilon, .dtype = config.dtype};
  require_part_order(kOperation, part_order, norm_position);
  attention = attention_of(config, derive_seed(seed, 0));
  attention_norm = Norm(norm);
  feed_forward = FeedForward(feed_forward_config(config, derive_seed(seed, 1)));
  feed_forward_norm = Norm(norm);
  if (norm_position == NormPosition::both) attention_output_norm = feed_forward_output_norm = Norm(norm);
}

void EncoderLayer::forward(ConstTensorView x, TensorView y, const AttentionOptions& options, Saved* saved) const {
  constexpr const char* kOperation = "EncoderLayer.forward";
  const DType dtype = feed_forward_norm.weight.dtype();
  require_exactly(kOperation, {"y", y}, x.shape(), dtype);
  require_no_overlap(kOperation, {"y", y}, {{"x", x}});
  require_parameters_separate(kOperation, {{"y", y}}, *this);
  if (options.cache != nullptr) require_order(kOperation, options, x);
  const double dropped = dropout_of(kOperation, dropout, options);
  require_members(kOperation, *this);
  require(attention_norm.weight || norm_position == NormPosition::pre, kOperation, ": attention_norm is absent; only layers with norm_position pre may lack it");
  if (saved == nullptr && norm_position == NormPosition::post && dropped == 0 && !mixture) return evaluate(*this, x, y, with_seed(options, 0));

  if (saved != nullptr) *saved = {};  // gives the memory of an earlier pass back to the workspace
  const auto of_saved = [&](auto Saved::*member) { return saved != nullptr ? &(saved->*member) : nullptr; };
  const RunOptions run{options.executor, options.workspace};
  const auto part = [&](const Norm& norm, const Norm& output_norm, std::uint64_t number, ConstTensorView sum) {
    return ResidualPart{norm, output_norm, norm_position, dropped, with_seed(options, number).dropout_seed.value_or(0), run, sum};
  };
  const bool is_parallel = part_order == PartOrder::parallel;
  Tensor attended = uninitialised(dtype, x.shape(), options.workspace);
  ResidualPart of_attention = part(attention_norm, attention_output_norm, 1, x);
  of_attention.norm_is_optional = true;
  SavedResidual first = residual_forward(of_attention, x, attended, [&](ConstTensorView in, TensorView out) {
    attention.forward({.query = in}, out, with_seed(options, 0), of_saved(&Saved::attention));
  });
  const ConstTensorView read = is_parallel ? x : ConstTensorView(attended);
  SavedResidual second = residual_forward(part(feed_forward_norm, feed_forward_output_norm, 2, attended), read, y, [&](ConstTensorView in, TensorView out) {
    if (mixture) return mixture.forward(in, out, run);
    feed_forward.forward(in, out, run, of_saved(&Saved::feed_forward));
  });
  if (saved == nullptr) return;
  saved->attention_residual = std::move(first);
  saved->attended = std::move(attended);
  saved->feed_forward_residual = std::move(second);
  saved->part_order = part_order;
}

void EncoderLayer::backward(const Saved& saved, ConstTensorView d_y, const EncoderGradients<EncoderLayer>& gradients,
                            const RunOptions& options) const {
  constexpr const char* kOperation = "EncoderLayer.backward";
  const TensorView d_x = gradients.x;
  EncoderLayer* const grads = gradients.parameters;
  const DType dtype = feed_forward_norm.weight.dtype();
  require(!mixture, kOperation, ": a mixture of experts has no backward pass");
  require_members(kOperation, *this);
  require_saved(kOperation, saved.feed_forward_residual, norm_position, feed_forward_norm.kind);
  require(saved.part_order == part_order, kOperation, ": saved comes from a layer of another part_order");
  const Shape& shape = saved.attended.shape();
  require_exactly(kOperation, {"d_y", d_y}, shape, dtype);
  require_exactly(kOperation, {"d_x", d_x}, shape, dtype);
  const ConstTensorView x = saved.attention_residual.x;
  require_no_overlap(kOperation, {"d_x", d_x}, {{"x", x}, {"d_y", d_y}});
  require_parameters_separate(kOperation, {{"d_x", d_x}}, *this);
  if (grads != nullptr) require_gradients(kOperation, *this, *grads, {{"x", x}, {"d_y", d_y}}, {"d_x", d_x});

  const auto of = [&](auto EncoderLayer::*member) { return grads != nullptr ? &(grads->*member) : nullptr; };
  const Write write = gradients.parameters_write;
  const auto feed_forward_backward = [&](ConstTensorView d_out, TensorView d_in) {
    feed_forward.backward(saved.feed_forward, d_out, {.x = d_in, .parameters = of(&EncoderLayer::feed_forward), .parameters_write = write}, options);
  };
  const auto attention_backward = [&](ConstTensorView d_out, TensorView d_in) {
    attention.backward(saved.attention, d_out,
                       {.query = d_in, .relative_bias = gradients.relative_bias, .parameters = of(&EncoderLayer::attention), .parameters_write = write, .attention_weights = gradients.attention_weights}, options);
  };
  const ResidualNorms of_attention{attention_norm, attention_output_norm, of(&EncoderLayer::attention_norm), of(&EncoderLayer::attention_output_norm), write};
  const ResidualNorms of_feed_forward{feed_forward_norm, feed_forward_output_norm, of(&EncoderLayer::feed_forward_norm), of(&EncoderLayer::feed_forward_output_norm), write};
  Tensor d_read = uninitialised(dtype, shape, options.workspace);
  if (part_order == PartOrder::parallel) {  // y = x + attention + feed-forward, so d_y is also the gradient of x + attention
    branch_backward(of_feed_forward, saved.feed_forward_residual, d_y, d_read, options, feed_forward_backward);
    residual_backward(of_attention, saved.attention_residual, d_y, d_x, options, attention_backward);
    add(d_read, d_x, options.executor);
  } else {
    residual_backward(of_feed_forward, saved.feed_forward_residual, d_y, d_read, options, feed_forward_backward);
    residual_backward(of_attention, saved.attention_residual, d_read, d_x, options, attention_backward);
  }
}

Encoder::Encoder(const LayerConfig& layer, std::int64_t count)
    : layers(make_layers<EncoderLayer>("Encoder", layer, count)), final_norm(make_final_norm(layer)) {}

void Encoder::forward(ConstTensorView x, TensorView y, const AttentionOptions& options, Saved* saved) const {
  require_no_cache("Encoder.forward", options, "EncoderCache");
  if (saved != nullptr) *saved = {};
  stack_forward("Encoder.forward", *this, x, y, {options.executor, options.workspace}, saved,
                [&](std::size_t i, ConstTensorView in, TensorView out, EncoderLayer::Saved* of_layer) {
                  layers[i].forward(in, out, with_seed(options, i), of_layer);
                });
}

void Encoder::forward(ConstTensorView x, TensorView y, EncoderCache& cache, const AttentionOptions& options) const {
  if (options.cache == nullptr) require_order("Encoder.forward", options, x);
  cached_forward("Encoder.forward", *this, x, y, cache.layers_, options,
                 [&](std::size_t i, ConstTensorView in, TensorView out, const AttentionOptions& own) { layers[i].forward(in, out, own); });
}

void Encoder::backward(const Saved& saved, ConstTensorView d_y, const EncoderGradients<Encoder>& gradients, const RunOptions& options) const {
  constexpr const char* kOperation = "Encoder.backward";
  require(!gradients.relative_bias, kOperation, ": the gradient of a relative bias is computed for one layer only; call backward of each layer and add the gradients");
  stack_backward(kOperation, *this, saved, saved.layers.empty() ? ConstTensorView() : saved.layers[0].attention_residual.x, d_y, gradients.x,
                 gradients.parameters, gradients.parameters_write, options, [&](std::size_t i, ConstTensorView d_out, TensorView d_in) {
                   EncoderLayer* const grads = gradients.parameters != nullptr ? &gradients.parameters->layers[i] : nullptr;
                   const auto own = of_layer(kOperation, gradients.attention_weights, i, layers.size());
                   layers[i].backward(
                       saved.layers[i], d_out,
                       {.x = d_in, .parameters = grads, .parameters_write = gradients.parameters_write, .attention_weights = own}, options);
                 });
}

}  // namespace polyhead::nn
