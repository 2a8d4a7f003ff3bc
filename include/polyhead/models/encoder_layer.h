// One layer of a post-norm Transformer encoder (Vaswani et al. 2017, section 3.1, as BERT uses it):
//   h = norm(x + attention(x)),   y = norm(h + feed_forward(h)).
#pragma once

#include "polyhead/nn/feed_forward.h"
#include "polyhead/nn/layer_norm.h"
#include "polyhead/nn/multi_head_attention.h"

#pragma GCC visibility push(default)
namespace polyhead::models {

struct EncoderLayerConfig {
  std::int64_t width = 0;         // E
  std::int64_t heads = 1;         // must divide the width
  std::int64_t hidden_width = 0;  // of the feed-forward part; 0: 4 E
  nn::Activation activation = nn::Activation::gelu;
  double epsilon = 1e-12;  // of both layer norms
  DType dtype = DType::f32;
  std::uint64_t seed = 0;
};

struct EncoderLayer : nn::Module<EncoderLayer> {
  nn::MultiHeadAttention attention;
  nn::LayerNorm attention_norm;
  nn::FeedForward feed_forward;
  nn::LayerNorm output_norm;

  // What backward and maps need from a forward pass. Input and mask are only views: the caller keeps their memory.
  struct Saved {
    nn::MultiHeadAttention::Saved attention;
    Tensor attention_sum;  // x + attention(x)  [*,T,E]
    Tensor attended;       // h                 [*,T,E]
    nn::FeedForward::Saved feed_forward;
    Tensor output_sum;  // h + feed_forward(h)
  };

  EncoderLayer() = default;
  explicit EncoderLayer(const EncoderLayerConfig& config);

  // x and y [*,T,E] of the parameters' dtype, with any strides; y may not overlap x.
  void forward(ConstTensorView x, TensorView y, const nn::AttentionOptions& options = {}, Saved* saved = nullptr) const;
  // d_y [*,T,E]. The gradient of x is required, is overwritten and may not overlap d_y.
  void backward(const Saved& saved, ConstTensorView d_y, const nn::Gradients<EncoderLayer>& gradients,
                const nn::RunOptions& options = {}) const;

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("attention", self.attention...);
    f("attention_norm", self.attention_norm...);
    f("feed_forward", self.feed_forward...);
    f("output_norm", self.output_norm...);
  }
};

}  // namespace polyhead::models
#pragma GCC visibility pop
