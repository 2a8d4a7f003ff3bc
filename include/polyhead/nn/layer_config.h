// The settings of the layers of Transformer encoders and decoders.
#pragma once

#include <cstdint>
#include <optional>

#include "polyhead/dtype.h"
#include "polyhead/nn/activation.h"
#include "polyhead/nn/norm.h"
#include "polyhead/nn/residual.h"
#include "polyhead/nn/seed.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

// The settings of an EncoderLayer, a DecoderLayer (for both of its attentions), stacks of these layers, and an EncoderDecoder.
struct LayerConfig {
  std::int64_t width = 0;         // E
  std::int64_t memory_width = 0;  // M, the width of the memory that a decoder layer reads; 0: E. Error for an encoder layer
  std::int64_t heads = 1;         // number of heads; it must divide the width unless head_width is given
  std::int64_t kv_heads = 0;      // number of key/value heads; 0: heads
  std::int64_t head_width = 0;    // H; 0: width / heads
  std::int64_t hidden_width = 0;  // hidden width of the feed-forward network; 0: 4 E
  Activation activation = Activation::gelu;
  bool gated = false;             // true: the feed-forward network has a gate; with Activation::silu it is SwiGLU
  bool bias = true;               // true: the projections q, k and v have a bias
  bool output_bias = true;        // true: the output projections of attention have a bias
  bool feed_forward_bias = true;  // true: the linear layers of the feed-forward network have a bias
  bool qk_norm = false;           // see MultiHeadAttentionConfig::qk_norm
  NormKind norm = NormKind::layer_norm;
  std::optional<NormPosition> norm_position{};    // absent: post; in an EncoderDecoder: pre
  PartOrder part_order = PartOrder::sequential;  // must be sequential for a decoder layer
  double epsilon = 1e-5;         // epsilon of all norms
  double dropout = 0;            // in training: dropout probability of what attention and feed-forward network add to the residual stream
  double attention_dropout = 0;  // in training: dropout probability of attention weights
  DType dtype = DType::f32;
  Seed seed;  // the initial parameters are drawn with this seed
};

}  // namespace polyhead::nn
#pragma GCC visibility pop
