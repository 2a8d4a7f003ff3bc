// The settings from which the layers of Transformer encoders and decoders are made.
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

// Settings of an EncoderLayer, a DecoderLayer (for both of its attentions), their stacks, and an EncoderDecoder.
struct LayerConfig {
  std::int64_t width = 0;         // E
  std::int64_t memory_width = 0;  // M, of a decoder layer; 0: E. Error for an encoder layer
  std::int64_t heads = 1;         // must divide the width, unless head_width is given
  std::int64_t kv_heads = 0;      // key/value heads; 0: heads
  std::int64_t head_width = 0;    // H; 0: width / heads
  std::int64_t hidden_width = 0;  // hidden width of the feed-forward part; 0: 4 E
  Activation activation = Activation::gelu;
  bool gated = false;             // the feed-forward part has a gate; with Activation::silu: SwiGLU
  bool bias = true;               // whether the projections q, k and v have a bias
  bool output_bias = true;        // whether the output projections of attention have a bias
  bool feed_forward_bias = true;  // whether the linear layers of the feed-forward part have a bias
  bool qk_norm = false;           // as MultiHeadAttentionConfig::qk_norm
  NormKind norm = NormKind::layer_norm;
  std::optional<NormPosition> norm_position{};    // absent: post; in an EncoderDecoder pre
  PartOrder part_order = PartOrder::sequential;  // Error for a decoder layer unless sequential
  double epsilon = 1e-5;         // epsilon of all norms
  double dropout = 0;            // in training: dropout of what each part adds to the residual stream
  double attention_dropout = 0;  // in training: dropout of attention weights
  DType dtype = DType::f32;
  Seed seed;  // draws the initial parameters
};

}  // namespace polyhead::nn
#pragma GCC visibility pop
