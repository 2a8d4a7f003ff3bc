// One part of an encoder or decoder layer with its residual connection and norm, forward and backward (polyhead/nn/residual.h).
#pragma once

#include "core/text.h"
#include "nn/add_norm.h"
#include "nn/elementwise.h"
#include "polyhead/nn/dropout.h"
#include "polyhead/nn/multi_head_attention.h"
#include "polyhead/nn/residual.h"

namespace polyhead::nn {

struct ResidualPart {
  const Norm& norm;
  NormPosition position;
  double dropout;      // 0 in evaluation
  std::uint64_t seed;  // of the dropout
  RunOptions options;
};

// f(in, out) computes the part. x and y do not overlap.
template <class F>
SavedResidual residual_forward(const ResidualPart& part, ConstTensorView x, TensorView y, const F& f) {
  Tensor normed = uninitialised(y.dtype(), x.shape(), part.options.workspace);
  const bool is_pre = part.position == NormPosition::pre;
  if (is_pre) part.norm.forward(x, normed, part.options);
  const TensorView out = is_pre ? y : normed.view();
  f(is_pre ? ConstTensorView(normed) : x, out);
  if (part.dropout > 0) dropout(out, out, part.dropout, part.seed, part.options.executor);
  is_pre ? add(x, y, part.options.executor) : add_and_normalise(part.norm, x, normed, y, part.options.executor);
  return {.x = x, .normed = std::move(normed), .position = part.position, .kind = part.norm.kind, .dropout = part.dropout, .seed = part.seed};
}

// f(d_out, d_in) writes the part's gradient for its input. d_x does not overlap d_y. The sum passes its gradient unchanged to x and to f's output.
template <class F>
void residual_backward(const Norm& norm, Norm* grads, Write parameters_write, const SavedResidual& saved, ConstTensorView d_y,
                       TensorView d_x, const RunOptions& options, const F& f) {
  const auto like_y = [&] { return uninitialised(d_y.dtype(), d_y.shape(), options.workspace); };
  const bool is_pre = saved.position == NormPosition::pre;
  Tensor d_sum, d_dropped;
  if (!is_pre) {
    d_sum = like_y();
    norm.backward(saved.normed, d_y, {.x = d_sum, .parameters = grads, .parameters_write = parameters_write}, options);
  }
  const ConstTensorView of_sum = is_pre ? d_y : ConstTensorView(d_sum);
  if (saved.dropout > 0) {
    d_dropped = like_y();
    dropout(of_sum, d_dropped, saved.dropout, saved.seed, options.executor);
  }
  const ConstTensorView d_out = saved.dropout > 0 ? ConstTensorView(d_dropped) : of_sum;
  if (is_pre) {
    Tensor d_normed = like_y();
    f(d_out, d_normed.view());
    norm.backward(saved.x, d_normed, {.x = d_x, .parameters = grads, .parameters_write = parameters_write}, options);
  } else {
    f(d_out, d_x);
  }
  add(of_sum, d_x, options.executor);
}

// Error unless `saved`, that of a layer's last part, comes from a forward pass of such a layer.
inline void require_saved(const char* operation, const SavedResidual& saved, NormPosition position, NormKind kind) {
  require(static_cast<bool>(saved.normed), operation, ": saved is empty; give it to forward first");
  const auto name = [](NormPosition p) { return p == NormPosition::pre ? "pre" : "post"; };
  require(saved.position == position, operation, ": saved comes from a ", name(saved.position), "-norm layer; this one is ", name(position), "-norm");
  const auto kind_name = [](NormKind k) { return k == NormKind::rms_norm ? "rms_norm" : "layer_norm"; };
  require(saved.kind == kind, operation, ": saved comes from a layer with ", kind_name(saved.kind), "; this one has ", kind_name(kind));
}

// The options of a layer's n-th use of randomness: each has a seed of its own.
inline AttentionOptions with_seed(AttentionOptions options, std::uint64_t number) {
  if (options.dropout_seed) options.dropout_seed = derive_seed(*options.dropout_seed, number);
  return options;
}

inline void require_dropout(const char* operation, double dropout) {
  require(dropout >= 0 && dropout <= 1, operation, ": dropout is ", dropout, "; it must lie in [0,1]");
}

// The dropout that a call applies. Error in training without a seed.
inline double dropout_of(const char* operation, double dropout, const AttentionOptions& options) {
  require_dropout(operation, dropout);  // a public member
  if (options.mode != Mode::training || dropout == 0) return 0;
  require(options.dropout_seed.has_value(), operation,
          ": dropout in training needs dropout_seed, another one for each layer and step (derive_seed)");
  return dropout;
}

}  // namespace polyhead::nn
