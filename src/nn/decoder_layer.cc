#include "polyhead/nn/decoder_layer.h"

#include "nn/attention_shapes.h"
#include "nn/attention_weights_gradient.h"
#include "nn/check.h"
#include "nn/residual.h"
#include "nn/stack.h"
#include "polyhead/nn/stack_cache.h"

namespace polyhead::nn {
namespace {

AttentionOptions causal(AttentionOptions options) {
  if (!options.mask.causal) options.mask.causal = Causal::top_left();
  return options;
}

// Returns the options of the cross-attention: the options of the self-attention without its masks, its biases and everything else that refers to keys.
AttentionOptions for_memory(const AttentionOptions& own, const Mask& mask) {
  return {.mask = mask,
          .mode = own.mode,
          .dropout_seed = own.dropout_seed,
          .backend = own.backend,
          .executor = own.executor,
          .workspace = own.workspace};
}

void require_members(const char* operation, const DecoderLayer& layer) {
  require_output_norms(operation, layer.norm_position,
                       {{"self_attention_output_norm", &layer.self_attention_output_norm}, {"cross_attention_output_norm", &layer.cross_attention_output_norm}, {"feed_forward_output_norm", &layer.feed_forward_output_norm}});
}

// The forward pass of a decoder layer. attend_memory(in, out, saved) computes the cross-attention. x and y do not overlap.
template <class F>
void layer_forward(const char* operation, const DecoderLayer& layer, ConstTensorView x, TensorView y, const AttentionOptions& options,
                   DecoderLayer::Saved* saved, const F& attend_memory) {
  using Saved = DecoderLayer::Saved;
  const double dropped = dropout_of(operation, layer.dropout, options);
  require_members(operation, layer);
  if (saved != nullptr) *saved = {};  // gives the memory of an earlier pass back to the workspace
  const auto of_saved = [&](auto Saved::*member) { return saved != nullptr ? &(saved->*member) : nullptr; };
  const RunOptions run{options.executor, options.workspace};
  const auto part = [&](const Norm& norm, const Norm& output_norm, std::uint64_t number) {
    return ResidualPart{norm, output_norm, layer.norm_position, dropped, with_seed(options, number).dropout_seed.value_or(0), run};
  };
  const auto like_x = [&] { return uninitialised(y.dtype(), x.shape(), options.workspace); };
  Tensor self_attended = like_x(), cross_attended = like_x();
  SavedResidual first = residual_forward(part(layer.self_attention_norm, layer.self_attention_output_norm, 1), x, self_attended, [&](ConstTensorView in, TensorView out) {
    layer.self_attention.forward({.query = in}, out, with_seed(causal(options), 0), of_saved(&Saved::self_attention));
  });
  SavedResidual second = residual_forward(part(layer.cross_attention_norm, layer.cross_attention_output_norm, 3), self_attended, cross_attended, [&](ConstTensorView in, TensorView out) {
    attend_memory(in, out, of_saved(&Saved::cross_attention));
  });
  SavedResidual third = residual_forward(part(layer.feed_forward_norm, layer.feed_forward_output_norm, 4), cross_attended, y, [&](ConstTensorView in, TensorView out) {
    layer.feed_forward.forward(in, out, run, of_saved(&Saved::feed_forward));
  });
  if (saved == nullptr) return;
  saved->self_attention_residual = std::move(first);
  saved->cross_attention_residual = std::move(second);
  saved->feed_forward_residual = std::move(third);
  saved->self_attended = std::move(self_attended);
  saved->cross_attended = std::move(cross_attended);
}

}  // namespace

DecoderLayer::DecoderLayer(const LayerConfig& config) : norm_position(config.norm_position.value_or(NormPosition::post)), dropout(config.dropout) {
  constexpr const char* kOperation = "DecoderLayer";
  const std::uint64_t seed = config.seed;
  require_dropout(kOperation, config.dropout);
  require(config.part_order == PartOrder::sequential, kOperation, ": part_order is parallel; the parts of a decoder layer are sequential");
  self_attention = attention_of(config, derive_seed(seed, 0));
  cross_attention = attention_of(config, derive_seed(seed, 1), config.memory_width);
  feed_forward = FeedForward(feed_forward_config(config, derive_seed(seed, 2)));
  self_attention_norm = Norm({.width = config.width, .kind = config.norm, .epsilon = config.epsilon, .dtype = config.dtype});
  cross_attention_norm = self_attention_norm;
  feed_forward_norm = self_attention_norm;
  if (norm_position == NormPosition::both) self_attention_output_norm = cross_attention_output_norm = feed_forward_output_norm = self_attention_norm;
}

void DecoderLayer::forward(ConstTensorView x, ConstTensorView memory, TensorView y, const DecoderOptions& options, Saved* saved) const {
  constexpr const char* kOperation = "DecoderLayer.forward";
  const AttentionOptions& own = options.attention;
  const DType dtype = self_attention_norm.weight.dtype();
  require_tensor(kOperation, {"memory", memory}, dtype);
  require_exactly(kOperation, {"y", y}, x.shape(), dtype);
  require_no_overlap(kOperation, {"y", y}, {{"x", x}, {"memory", memory}});
  require_parameters_separate(kOperation, {{"y", y}}, *this);
  layer_forward(kOperation, *this, x, y, own, saved, [&](ConstTensorView in, TensorView out, MultiHeadAttention::Saved* of_attention) {
    cross_attention.forward({.query = in, .key = memory}, out, with_seed(for_memory(own, options.memory_mask), 2), of_attention);
  });
}

void DecoderLayer::backward(const Saved& saved, ConstTensorView d_y, const DecoderGradients<DecoderLayer>& gradients,
                            const RunOptions& options) const {
  constexpr const char* kOperation = "DecoderLayer.backward";
  const TensorView d_x = gradients.x, d_memory = gradients.memory;
  DecoderLayer* const grads = gradients.parameters;
  const DType dtype = self_attention_norm.weight.dtype();
  require_saved(kOperation, saved.feed_forward_residual, norm_position, feed_forward_norm.kind);
  require_members(kOperation, *this);
  const Shape& shape = saved.self_attended.shape();
  const ConstTensorView x = saved.self_attention_residual.x, memory = saved.cross_attention.input.key;
  require_exactly(kOperation, {"d_y", d_y}, shape, dtype);
  require_exactly(kOperation, {"d_x", d_x}, shape, dtype);
  std::vector<Operand> written{{"d_x", d_x}};
  if (d_memory) {
    require_exactly(kOperation, {"d_memory", d_memory}, memory.shape(), dtype);
    written.push_back({"d_memory", d_memory});
  }
  const Operand read[] = {{"x", x}, {"memory", memory}, {"d_y", d_y}};
  polyhead::require_no_overlap(kOperation, written, read);
  require_parameters_separate(kOperation, {{"d_x", d_x}, {"d_memory", d_memory}}, *this);
  if (grads != nullptr) require_gradients(kOperation, *this, *grads, read, written);

  const auto of = [&](auto DecoderLayer::*member) { return grads != nullptr ? &(grads->*member) : nullptr; };
  const Write write = gradients.parameters_write;
  Tensor d_cross_attended = uninitialised(dtype, shape, options.workspace), d_self_attended = uninitialised(dtype, shape, options.workspace), d_added;
  const auto norms = [&](Norm DecoderLayer::*norm, Norm DecoderLayer::*output_norm) {
    return ResidualNorms{this->*norm, this->*output_norm, of(norm), of(output_norm), write};
  };
  residual_backward(norms(&DecoderLayer::feed_forward_norm, &DecoderLayer::feed_forward_output_norm), saved.feed_forward_residual, d_y, d_cross_attended, options,
                    [&](ConstTensorView d_out, TensorView d_in) {
                      feed_forward.backward(saved.feed_forward, d_out, {.x = d_in, .parameters = of(&DecoderLayer::feed_forward), .parameters_write = write}, options);
                    });
  const bool adds = d_memory && gradients.memory_write == Write::add;
  if (adds) d_added = uninitialised(dtype, memory.shape(), options.workspace);
  residual_backward(norms(&DecoderLayer::cross_attention_norm, &DecoderLayer::cross_attention_output_norm), saved.cross_attention_residual, d_cross_attended, d_self_attended, options,
                    [&](ConstTensorView d_out, TensorView d_in) {
                      cross_attention.backward(
                          saved.cross_attention, d_out,
                          {.query = d_in,
                           .key = adds ? d_added.view() : d_memory,
                           .parameters = of(&DecoderLayer::cross_attention),
                           .parameters_write = write,
                           .attention_weights = gradients.cross_attention_weights},
                          options);
                    });
  if (adds) add(d_added, d_memory, options.executor);
  residual_backward(norms(&DecoderLayer::self_attention_norm, &DecoderLayer::self_attention_output_norm), saved.self_attention_residual, d_self_attended, d_x, options,
                    [&](ConstTensorView d_out, TensorView d_in) {
                      self_attention.backward(
                          saved.self_attention, d_out,
                          {.query = d_in, .parameters = of(&DecoderLayer::self_attention), .parameters_write = write, .attention_weights = gradients.self_attention_weights},
                          options);
                    });
}

Decoder::Decoder(const LayerConfig& layer, std::int64_t count)
    : layers(make_layers<DecoderLayer>("Decoder", layer, count)), final_norm(make_final_norm(layer)) {}

void Decoder::forward(ConstTensorView x, ConstTensorView memory, TensorView y, const DecoderOptions& options, Saved* saved) const {
  constexpr const char* kOperation = "Decoder.forward";
  require_no_cache(kOperation, options.attention, "DecoderCache");
  if (saved != nullptr) *saved = {};
  require_no_overlap(kOperation, {"y", y}, {{"memory", memory}});
  stack_forward(kOperation, *this, x, y, {options.attention.executor, options.attention.workspace}, saved,
                [&](std::size_t i, ConstTensorView in, TensorView out, DecoderLayer::Saved* of_layer) {
                  DecoderOptions of_options = options;
                  of_options.attention = with_seed(options.attention, i);
                  layers[i].forward(in, memory, out, of_options, of_layer);
                });
}

void Decoder::forward(ConstTensorView x, TensorView y, DecoderCache& cache, const AttentionOptions& options) const {
  constexpr const char* kOperation = "Decoder.forward";
  cached_forward(kOperation, *this, x, y, cache.tokens_.layers_, options,
                 [&](std::size_t i, ConstTensorView in, TensorView out, const AttentionOptions& own) {
    layer_forward(kOperation, layers[i], in, out, own, nullptr, [&](ConstTensorView queries, TensorView attended, auto*) {
      // The beams that read one memory are computed as one sequence of queries. This is possible because the mask of the cross-attention is the same for all
      // queries.
      const MultiHeadAttention& attention = layers[i].cross_attention;
      const DecoderCache::Memory& memory = cache.memory_[i];
      const auto heads_of = [&](const Tensor& tensor) { return split_heads(ConstTensorView(tensor), 1, attention.config.kv_heads); };
      const Shape by_memory{memory.k.extent(0), cache.beams_ * queries.extent(1), queries.extent(2)};
      attention.forward({.query = queries.reshape(by_memory), .projected_key = heads_of(memory.k), .projected_value = heads_of(memory.v)},
                        attended.reshape(by_memory), for_memory(own, cache.memory_mask()));
    });
  });
}

void Decoder::backward(const Saved& saved, ConstTensorView d_y, const DecoderGradients<Decoder>& gradients, const RunOptions& options) const {
  constexpr const char* kOperation = "Decoder.backward";
  const TensorView d_memory = gradients.memory;
  if (d_memory && !saved.layers.empty()) {
    const ConstTensorView memory = saved.layers[0].cross_attention.input.key;
    require_exactly(kOperation, {"d_memory", d_memory}, memory.shape(), memory.dtype());
    const Operand read[] = {{"d_y", d_y}, {"d_x", gradients.x}, {"memory", memory}};
    const Operand written{"d_memory", d_memory};
    polyhead::require_no_overlap(kOperation, {&written, 1}, read);
    require_parameters_separate(kOperation, {written}, *this);
  }
  stack_backward(kOperation, *this, saved, saved.layers.empty() ? ConstTensorView() : saved.layers[0].self_attention_residual.x, d_y, gradients.x,
                 gradients.parameters, gradients.parameters_write, options, [&](std::size_t i, ConstTensorView d_out, TensorView d_in) {
                   DecoderLayer* const grads = gradients.parameters != nullptr ? &gradients.parameters->layers[i] : nullptr;
                   const bool first = i + 1 == layers.size();
                   const auto of_self = of_layer(kOperation, gradients.self_attention_weights, i, layers.size());
                   const auto of_memory = of_layer(kOperation, gradients.cross_attention_weights, i, layers.size());
                   layers[i].backward(saved.layers[i], d_out,
                                      {.x = d_in,
                                       .memory = d_memory,
                                       .parameters = grads,
                                       .memory_write = first ? gradients.memory_write : Write::add,
                                       .parameters_write = gradients.parameters_write,
                                       .self_attention_weights = of_self,
                                       .cross_attention_weights = of_memory},
                                      options);
                 });
}

}  // namespace polyhead::nn
