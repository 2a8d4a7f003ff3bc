// Layers of a Transformer decoder that reads an encoder's output (the memory), and their stack (Vaswani et al. 2017, section 3.1). For a
// decoder without a memory, as GPT-2 has it, use the layers of encoder_layer.h with a causal mask.
#pragma once

#include "polyhead/nn/encoder_layer.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

class DecoderCache;

struct DecoderOptions {
  // Options of the self-attention. It is causal (top_left) unless `attention.mask` sets another diagonal. The options mode, dropout_seed, executor,
  // workspace and backend hold for the whole layer.
  AttentionOptions attention{};
  Mask memory_mask{};            // masks keys of the memory, for example by key_lengths
};

// Tensors that receive the gradients of backward. x is required; the gradients of the memory and of the parameters are computed if `memory` and `parameters`
// are given.
template <class M>
struct DecoderGradients {
  TensorView x = {};       // [*,T,E], overwritten; may not overlap d_y
  TensorView memory = {};  // [*,S,M]
  M* parameters = nullptr;
  Write memory_write = Write::replace;      // add: if several layers read the same memory (output of the encoder)
  Write parameters_write = Write::replace;  // replace or add, as in nn::Gradients
  std::span<const AttentionWeightsGradient> self_attention_weights = {}, cross_attention_weights = {};  // inputs: gradients d_p of a loss on attention weights
};

// post:  h = norm(x + self_attention(x)),   g = norm(h + cross_attention(h, memory)),   y = norm(g + feed_forward(g))
// pre:   h = x + self_attention(norm(x)), and so on; the memory is not normed, because an encoder ends with its own norm
// both:  as pre, but the outputs of both attentions and of the feed-forward part are normed too (polyhead/nn/residual.h)
struct DecoderLayer : Module<DecoderLayer> {
  MultiHeadAttention self_attention, cross_attention;
  Norm self_attention_norm, cross_attention_norm;
  FeedForward feed_forward;
  Norm feed_forward_norm;
  Norm self_attention_output_norm, cross_attention_output_norm, feed_forward_output_norm;  // absent without NormPosition::both
  NormPosition norm_position = NormPosition::post;
  double dropout = 0;

  // What backward and maps need from a forward pass. Inputs and masks are only views: the caller keeps their memory.
  struct Saved {
    MultiHeadAttention::Saved self_attention, cross_attention;
    Tensor self_attended, cross_attended;  // h and g of the formula above, [*,T,E]
    FeedForward::Saved feed_forward;
    SavedResidual self_attention_residual, cross_attention_residual, feed_forward_residual;
  };

  DecoderLayer() = default;
  explicit DecoderLayer(const LayerConfig& config);

  // x and y [*,T,E], memory [*,S,M] of the parameters' dtype, with any strides; y may not overlap x or memory.
  void forward(ConstTensorView x, ConstTensorView memory, TensorView y, const DecoderOptions& options = {}, Saved* saved = nullptr) const;
  void backward(const Saved& saved, ConstTensorView d_y, const DecoderGradients<DecoderLayer>& gradients,
                const RunOptions& options = {}) const;

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("self_attention", self.self_attention...);
    f("cross_attention", self.cross_attention...);
    f("self_attention_norm", self.self_attention_norm...);
    f("cross_attention_norm", self.cross_attention_norm...);
    f("feed_forward", self.feed_forward...);
    f("feed_forward_norm", self.feed_forward_norm...);
    f("self_attention_output_norm", self.self_attention_output_norm...);
    f("cross_attention_output_norm", self.cross_attention_output_norm...);
    f("feed_forward_output_norm", self.feed_forward_output_norm...);
    f("norm_position", self.norm_position...);
    f("dropout", self.dropout...);
  }
};

// y = layers[n - 1](... layers[0](x, memory) ..., memory), then final_norm if present. With NormPosition::pre or NormPosition::both, final_norm is required:
// nothing else norms the output of the last layer.
struct Decoder : Module<Decoder> {
  std::vector<DecoderLayer> layers;
  Norm final_norm;  // required with NormPosition::pre or NormPosition::both, else forward throws an Error; usually absent with NormPosition::post

  struct Saved {
    std::vector<DecoderLayer::Saved> layers;
    std::vector<Tensor> outputs;  // [*,T,E]: outputs of all layers; without final_norm the output of the last layer is missing, because it is y
  };

  Decoder() = default;
  Decoder(const LayerConfig& layer, std::int64_t count);  // count at least 1; the seed of layer i is derive_seed(seed, i)

  // Runs the stack with the options of DecoderLayer::forward(); the dropout seed of layer i is derive_seed(options.attention.dropout_seed, i). Error if the
  // options have a cache, because such a cache serves a single layer.
  void forward(ConstTensorView x, ConstTensorView memory, TensorView y, const DecoderOptions& options = {}, Saved* saved = nullptr) const;
  // Evaluates the next T tokens of the cache's sequences (stack_cache.h); x and y [sequences,T,E]. The cache holds the projected keys and values of the memory.
  // The cache is unchanged if forward() throws.
  void forward(ConstTensorView x, TensorView y, DecoderCache& cache, const AttentionOptions& options = {}) const;
  void backward(const Saved& saved, ConstTensorView d_y, const DecoderGradients<Decoder>& gradients, const RunOptions& options = {}) const;

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("layers", self.layers...);
    f("final_norm", self.final_norm...);
  }
};

}  // namespace polyhead::nn
#pragma GCC visibility pop
