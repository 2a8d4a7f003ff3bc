// Layers of a Transformer encoder, and stacks of these layers (Vaswani et al. 2017, section 3.1). With a causal mask they also serve as a decoder without a
// memory, such as GPT-2.
#pragma once

#include <vector>

#include "polyhead/nn/feed_forward.h"
#include "polyhead/nn/layer_config.h"
#include "polyhead/nn/mixture_of_experts.h"
#include "polyhead/nn/multi_head_attention.h"
#include "polyhead/nn/norm.h"
#include "polyhead/nn/residual.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

class EncoderCache;

// Where backward() writes the gradients of an encoder layer or of a stack. x is required; the gradients of the parameters are computed if `parameters` is
// given.
template <class M>
struct EncoderGradients {
  TensorView x = {};  // [*,T,E]: the gradient of x; it replaces what the view holds, and may not overlap d_y
  M* parameters = nullptr;
  // whether the gradients of the parameters replace what `parameters` holds, or are added to it
  Write parameters_write = Write::replace;
  std::span<const AttentionWeightsGradient> attention_weights = {};  // input: the gradients d_p of a loss on attention weights
  TensorView relative_bias = {};  // gradient of options.relative_bias.slopes or .table, in its shape and dtype; Error for a stack
};

// The formulas of an encoder layer, for each NormPosition:
// post:  h = norm(x + attention(x)),        y = norm(h + feed_forward(h))
// pre:   h = x + attention(norm(x)),        y = h + feed_forward(norm(h))
// both:  as pre, but attention_output_norm and feed_forward_output_norm normalise the outputs of attention(..) and feed_forward(..)
// In training, dropout applies to everything that is added to x or h. With PartOrder::parallel:
//        y = x + attention(attention_norm(x)) + feed_forward(feed_forward_norm(x))
struct EncoderLayer : Module<EncoderLayer> {
  MultiHeadAttention attention;
  Norm attention_norm;  // may be absent with NormPosition::pre; the attention then reads x itself, as in ModernBERT's first layer
  FeedForward feed_forward;
  MixtureOfExperts mixture;  // If present, a mixture of experts takes the place of feed_forward, which is then absent; backward() throws an Error.
  Norm feed_forward_norm;
  Norm attention_output_norm, feed_forward_output_norm;  // only with NormPosition::both
  NormPosition norm_position = NormPosition::post;
  PartOrder part_order = PartOrder::sequential;
  double dropout = 0;

  // What backward() and maps need from a forward pass. Saved only has views of input and mask, so the caller must keep their memory.
  struct Saved {
    MultiHeadAttention::Saved attention;
    Tensor attended;  // [*,T,E]: h in the formulas of the layer
    FeedForward::Saved feed_forward;
    SavedResidual attention_residual, feed_forward_residual;
    PartOrder part_order = PartOrder::sequential;
  };

  EncoderLayer() = default;
  explicit EncoderLayer(const LayerConfig& config);

  // x and y are [*,T,E] of the parameters' dtype, with any strides; y may not overlap x. All dropout in this layer uses options.dropout_seed.
  void forward(ConstTensorView x, TensorView y, const AttentionOptions& options = {}, Saved* saved = nullptr) const;
  void backward(const Saved& saved, ConstTensorView d_y, const EncoderGradients<EncoderLayer>& gradients, const RunOptions& options = {}) const;

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("attention", self.attention...);
    f("attention_norm", self.attention_norm...);
    f("feed_forward", self.feed_forward...);
    f("mixture", self.mixture...);
    f("feed_forward_norm", self.feed_forward_norm...);
    f("attention_output_norm", self.attention_output_norm...);
    f("feed_forward_output_norm", self.feed_forward_output_norm...);
    f("part_order", self.part_order...);
    f("norm_position", self.norm_position...);
    f("dropout", self.dropout...);
  }
};

// A stack of encoder layers: y = layers[n - 1](... layers[0](x)), followed by final_norm if it is present. With NormPosition::pre or both, final_norm is
// required, because the output of the last layer is not yet normalised. To make a stack of different layers, fill `layers` and `final_norm`. To give a layer's
// attention a gate or a sink, replace its `attention` before a cache is made.
struct Encoder : Module<Encoder> {
  std::vector<EncoderLayer> layers;
  Norm final_norm;  // required with NormPosition::pre or both: without it forward() throws an Error; usually absent with NormPosition::post

  struct Saved {
    std::vector<EncoderLayer::Saved> layers;
    std::vector<Tensor> outputs;  // [*,T,E]: the outputs of all layers. Without final_norm the last layer's output is missing, because it is y.
  };

  Encoder() = default;
  Encoder(const LayerConfig& layer, std::int64_t count);  // `count` layers, at least 1; the seed of layer i is derive_seed(layer.seed, i)

  // Runs the stack with the options of EncoderLayer::forward(). The dropout seed of layer i is derive_seed(options.dropout_seed, i). Error if the options have
  // a cache, because such a cache serves a single layer.
  void forward(ConstTensorView x, TensorView y, const AttentionOptions& options = {}, Saved* saved = nullptr) const;
  // Computes the stack for the next T tokens of the cache's B sequences (stack_cache.h); x and y are [B,T,E]. Each layer appends its keys and values, as with
  // AttentionOptions::cache. For a decoder-only model such as GPT-2 pass .mask = {.causal = Causal::top_left()} in every call. Error if T > 1 and neither the
  // mask nor attend_later_tokens says whether a token attends to later tokens. The cache is unchanged if forward() throws.
  void forward(ConstTensorView x, TensorView y, EncoderCache& cache, const AttentionOptions& options = {}) const;
  void backward(const Saved& saved, ConstTensorView d_y, const EncoderGradients<Encoder>& gradients, const RunOptions& options = {}) const;

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("layers", self.layers...);
    f("final_norm", self.final_norm...);
  }
};

}  // namespace polyhead::nn
#pragma GCC visibility pop
