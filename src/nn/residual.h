// A part of an encoder or decoder layer, which is attention or the feed-forward network, with its residual connection and norm: forward and backward pass
// (polyhead/nn/residual.h).
#pragma once

#include <initializer_list>
#include <utility>

#include "core/text.h"
#include "nn/add_norm.h"
#include "nn/elementwise.h"
#include "polyhead/nn/dropout.h"
#include "polyhead/nn/feed_forward.h"
#include "polyhead/nn/multi_head_attention.h"
#include "polyhead/nn/layer_config.h"
#include "polyhead/nn/residual.h"

namespace polyhead::nn {

struct ResidualPart {
  const Norm& norm;
  const Norm& output_norm;  // used with NormPosition::both
  NormPosition position;
  double dropout;      // 0 in evaluation
  std::uint64_t seed;  // with this seed the dropout bits are drawn
  RunOptions options;
  ConstTensorView sum = {};  // the tensor to which the part's output is added; absent: x. Not used with NormPosition::post.
  bool norm_is_optional = false;  // with NormPosition::pre: the norm may be absent, and the part then reads x itself
};

// The forward pass of a part. f(in, out) computes the attention or the feed-forward network. x and y do not overlap.
template <class F>
SavedResidual residual_forward(const ResidualPart& part, ConstTensorView x, TensorView y, const F& f) {
  const auto like_x = [&] { return uninitialised(y.dtype(), x.shape(), part.options.workspace); };
  const bool is_post = part.position == NormPosition::post, is_both = part.position == NormPosition::both;
  Tensor normed = like_x(), output = is_both ? like_x() : Tensor();
  const bool reads_x = part.norm_is_optional && !part.norm.weight;
  if (!is_post) reads_x ? copy(x, normed) : part.norm.forward(x, normed, part.options);
  const TensorView summand = is_post ? normed.view() : y;
  f(is_post ? x : ConstTensorView(normed), is_both ? output.view() : summand);
  if (is_both) part.output_norm.forward(output, y, part.options);
  if (part.dropout > 0) dropout(summand, summand, part.dropout, part.seed, part.options.executor);
  is_post ? add_and_normalise(part.norm, x, normed, y, part.options.executor) : add(part.sum ? part.sum : x, y, part.options.executor);
  return {.x = x,
          .normed = std::move(normed),
          .output = std::move(output),
          .position = part.position,
          .kind = part.norm.kind,
          .dropout = part.dropout,
          .seed = part.seed};
}

// The norms of a part, and the modules that receive the gradients of their parameters; nullptr: these gradients are not computed.
struct ResidualNorms {
  const Norm &norm, &output_norm;
  Norm *grads, *output_grads;
  Write parameters_write;
};

// Writes the gradient of x that flows through the part to d_x, without the gradient that flows through the residual connection. f(d_out, d_in) is the backward
// pass of the attention or the feed-forward network.
template <class F>
void branch_backward(const ResidualNorms& norms, const SavedResidual& saved, ConstTensorView d_sum, TensorView d_x, const RunOptions& options, const F& f) {
  const auto like_x = [&] { return uninitialised(d_x.dtype(), d_x.shape(), options.workspace); };
  Tensor d_dropped, d_output;
  ConstTensorView d_out = d_sum;
  if (saved.dropout > 0) {
    d_dropped = like_x();
    dropout(d_out, d_dropped, saved.dropout, saved.seed, options.executor);
    d_out = d_dropped;
  }
  if (saved.position == NormPosition::post) return f(d_out, d_x);
  if (saved.position == NormPosition::both) {
    d_output = like_x();
    norms.output_norm.backward(saved.output, d_out, {.x = d_output, .parameters = norms.output_grads, .parameters_write = norms.parameters_write}, options);
    d_out = d_output;
  }
  if (!norms.norm.weight) return f(d_out, d_x);
  Tensor d_normed = like_x();
  f(d_out, d_normed.view());
  norms.norm.backward(saved.x, d_normed, {.x = d_x, .parameters = norms.grads, .parameters_write = norms.parameters_write}, options);
}

// Like branch_backward(), but d_x includes the gradient that flows through the residual connection. d_x does not overlap d_y.
template <class F>
void residual_backward(const ResidualNorms& norms, const SavedResidual& saved, ConstTensorView d_y, TensorView d_x, const RunOptions& options, const F& f) {
  Tensor d_sum;
  if (saved.position == NormPosition::post) {
    d_sum = uninitialised(d_y.dtype(), d_y.shape(), options.workspace);
    norms.norm.backward(saved.normed, d_y, {.x = d_sum, .parameters = norms.grads, .parameters_write = norms.parameters_write}, options);
  }
  const ConstTensorView of_sum = d_sum ? ConstTensorView(d_sum) : d_y;
  branch_backward(norms, saved, of_sum, d_x, options, f);
  add(of_sum, d_x, options.executor);
}

// Error unless `saved`, which belongs to the last part of a layer, comes from a forward pass of a layer with this NormPosition and NormKind.
inline void require_saved(const char* operation, const SavedResidual& saved, NormPosition position, NormKind kind) {
  require(static_cast<bool>(saved.normed), operation, ": saved is empty; give it to forward first");
  static constexpr const char* kNames[] = {"post-norm", "pre-norm", "both-norm"};  // the names in the order of NormPosition
  const auto name = [](NormPosition p) { return kNames[static_cast<std::size_t>(p)]; };
  require(saved.position == position, operation, ": saved comes from a ", name(saved.position), " layer; this one is ", name(position));
  const auto kind_name = [](NormKind k) { return k == NormKind::rms_norm ? "rms_norm" : "layer_norm"; };
  require(saved.kind == kind, operation, ": saved comes from a layer with ", kind_name(saved.kind), "; this one has ", kind_name(kind));
}

// Error if the layer has an output norm that norm_position does not use, or lacks one that it uses. Members are public, so without this check such a norm would
// be ignored.
inline void require_output_norms(const char* operation, NormPosition position, std::initializer_list<std::pair<const char*, const Norm*>> norms) {
  static constexpr const char* kNames[] = {"post", "pre", "both"};  // the names in the order of NormPosition
  const bool used = position == NormPosition::both;
  for (const auto& [name, norm] : norms) {
    if (static_cast<bool>(norm->weight) == used) continue;
    if (used) fail(ErrorCode::invalid_argument, operation, ": norm_position is both, but the layer has no ", name);
    fail(ErrorCode::invalid_argument, operation, ": the layer has ", name, ", but norm_position is ", kNames[static_cast<std::size_t>(position)], "; only norm_position both has output norms");
  }
}

inline void require_part_order(const char* operation, PartOrder order, NormPosition position) {
  require(order == PartOrder::sequential || position != NormPosition::post, operation,
          ": part_order is parallel and norm_position post; parallel parts norm x first, so norm_position must be pre or both");
}

// Makes the attention of an encoder or decoder layer. key_width 0: the width of the layer.
inline MultiHeadAttention attention_of(const LayerConfig& config, std::uint64_t seed, std::int64_t key_width = 0) {
  MultiHeadAttention attention({.query_width = config.width,
                                .key_width = key_width,
                                .heads = config.heads,
                                .kv_heads = config.kv_heads,
                                .head_width = config.head_width,
                                .bias = config.bias,
                                .output_bias = config.output_bias,
                                .qk_norm = config.qk_norm,
                                .dropout = config.attention_dropout,
                                .dtype = config.dtype,
                                .seed = seed});
  attention.q_norm.epsilon = attention.k_norm.epsilon = config.epsilon;
  return attention;
}

inline FeedForwardConfig feed_forward_config(const LayerConfig& config, std::uint64_t seed) {
  return {.width = config.width,
          .hidden_width = config.hidden_width == 0 ? 4 * config.width : config.hidden_width,
          .activation = config.activation,
          .gated = config.gated,
          .bias = config.feed_forward_bias,
          .dtype = config.dtype,
          .seed = seed};
}

// Returns the options with the dropout seed for the `number`-th use of randomness in a layer. Every use has another seed.
inline AttentionOptions with_seed(AttentionOptions options, std::uint64_t number) {
  if (options.dropout_seed) options.dropout_seed = derive_seed(*options.dropout_seed, number);
  return options;
}

inline void require_dropout(const char* operation, double dropout) {
  require(dropout >= 0 && dropout <= 1, operation, ": dropout is ", dropout, "; it must lie in [0,1]");
}

// Returns the dropout probability of a call, which is 0 in evaluation. Error in training without a seed.
inline double dropout_of(const char* operation, double dropout, const AttentionOptions& options) {
  require_dropout(operation, dropout);  // checked again, because the caller may have changed the public member
  if (options.mode != Mode::training || dropout == 0) return 0;
  require(options.dropout_seed.has_value(), operation,
          ": dropout in training needs dropout_seed, a different seed for each layer and step (derive_seed)");
  return dropout;
}

}  // namespace polyhead::nn
