// Layers of a Transformer decoder that reads the output of an encoder (the memory), and stacks of these layers (Vaswani et al. 2017, section 3.1). For a
// decoder without a memory, such as GPT-2, use the layers of encoder_layer.h with a causal mask.
#pragma once

#include "polyhead/nn/encoder_layer.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

class DecoderCache;

struct DecoderOptions {
  // Options of the self-attention. It is causal (top_left) unless `attention.mask` sets another diagonal. mode, dropout_seed, executor, workspace and backend
  // also apply to the rest of the layer.
  AttentionOptions attention{};
  Mask memory_mask{};            // which keys of the memory may be attended to, for example by key_lengths
};

// Where backward() writes the gradients of a decoder layer or of a stack. x is required. The gradients of the memory and of the parameters are computed if
// `memory` and `parameters` are given.
template <class M>
struct DecoderGradients {
  TensorView x = {};       // [*,T,E]: the gradient of x; it replaces what the view holds, and may not overlap d_y
  TensorView memory = {};  // [*,S,M]: the gradient of the memory
  M* parameters = nullptr;
  Write memory_write = Write::replace;      // add: several layers read the same output of an encoder, so their gradients of it are added up
  Write parameters_write = Write::replace;  // whether the gradients of the parameters replace what `parameters` holds, or are added to it
  // inputs: the gradients d_p of a loss on attention weights
  std::span<const AttentionWeightsGradient> self_attention_weights = {}, cross_attention_weights = {};
};

// The formulas of a decoder layer, for each NormPosition:
// post:  h = norm(x + self_attention(x)),   g = norm(h + cross_attention(h, memory)),   y = norm(g + feed_forward(g))
// pre:   h = x + self_attention(norm(x)), and so on. The memory is not normalised, because an encoder ends with its own norm.
// both:  as pre, but norms also follow both attentions and the feed-forward network (polyhead/nn/residual.h).
struct DecoderLayer : Module<DecoderLayer> {
  MultiHeadAttention self_attention, cross_attention;
  Norm self_attention_norm, cross_attention_norm;
  FeedForward feed_forward;
  Norm feed_forward_norm;
  Norm self_attention_output_norm, cross_attention_output_norm, feed_forward_output_norm;  // absent without NormPosition::both
  NormPosition norm_position = NormPosition::post;
  double dropout = 0;

  // What backward() and maps need from a forward pass. Saved only has views of inputs and masks, so the caller must keep their memory.
  struct Saved {
    MultiHeadAttention::Saved self_attention, cross_attention;
    Tensor self_attended, cross_attended;  // [*,T,E]: h and g in the formulas of the layer
    FeedForward::Saved feed_forward;
    SavedResidual self_attention_residual, cross_attention_residual, feed_forward_residual;
  };

  DecoderLayer() = default;
  explicit DecoderLayer(const LayerConfig& config);

  // x and y are [*,T,E] and memory is [*,S,M], all of the parameters' dtype, with any strides; y may not overlap x or memory.
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

// A stack of decoder layers: y = layers[n - 1](... layers[0](x, memory) ..., memory), followed by final_norm if it is present. With NormPosition::pre or both,
// final_norm is required, because the output of the last layer is not yet normalised.
struct Decoder : Module<Decoder> {
  std::vector<DecoderLayer> layers;
  Norm final_norm;  // required with NormPosition::pre or both: without it forward() throws an Error; usually absent with NormPosition::post

  struct Saved {
    std::vector<DecoderLayer::Saved> layers;
    std::vector<Tensor> outputs;  // [*,T,E]: the outputs of all layers. Without final_norm the last layer's output is missing, because it is y.
  };

  Decoder() = default;
  Decoder(const LayerConfig& layer, std::int64_t count);  // `count` layers, at least 1; the seed of layer i is derive_seed(layer.seed, i)

  // Runs the stack with the options of DecoderLayer::forward(). The dropout seed of layer i is derive_seed(options.attention.dropout_seed, i). Error if
  // options.attention has a cache, because such a cache serves a single layer.
  void forward(ConstTensorView x, ConstTensorView memory, TensorView y, const DecoderOptions& options = {}, Saved* saved = nullptr) const;
  // Computes the stack for the next T tokens of the cache's sequences (stack_cache.h); x and y are [sequences,T,E]. The cache also holds the projected keys and
  // values of the memory. It is unchanged if forward() throws.
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
