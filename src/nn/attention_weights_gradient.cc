#include "nn/attention_weights_gradient.h"

#include <cmath>
#include <vector>

#include "core/dispatch.h"
#include "core/index.h"
#include "core/parallel.h"
#include "cpu/gemm/gemm.h"
#include "nn/check.h"
#include "nn/elementwise.h"
#include "nn/rows.h"

namespace polyhead::nn {
namespace {

// Returns matrix number b of a view [*,rows,columns].
template <class Void>
BasicTensorView<Void> matrix(BasicTensorView<Void> view, std::int64_t b) {
  const int lead = view.rank() - 2;
  using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
  const std::int64_t offset = offset_at(view.shape().first(lead), view.strides().first(lead), b) * static_cast<std::int64_t>(info(view.dtype()).size);
  return {static_cast<Byte*>(view.data()) + offset, view.dtype(), view.shape().last(2), view.strides().last(2)};
}

// d_x = scale p (d_p - sum_s p d_p). A pair that a mask excludes has p = 0, and its d_p is not read.
template <class T>
void differentiate(ConstTensorView p_view, ConstTensorView d_p_view, double scale, TensorView d_x_view) {
  const Rows<const T> p(p_view), d_p(d_p_view);
  const Rows<T> d_x(d_x_view);
  const std::int64_t keys = p_view.extent(1);
  for (std::int64_t t = 0; t < p.count(); ++t) {
    const auto p_t = p[t], d_p_t = d_p[t];
    double sum = 0;
    for (std::int64_t s = 0; s < keys; ++s) sum += load(p_t[s]) == 0 ? 0.0 : double{load(p_t[s])} * load(d_p_t[s]);
    for (std::int64_t s = 0; s < keys; ++s) d_x.at(t, s) = store<T>(load(p_t[s]) == 0 ? 0.0 : scale * load(p_t[s]) * (load(d_p_t[s]) - sum));
  }
}

}  // namespace

void require_attention_weights_gradients(const char* operation, std::span<const AttentionWeightsGradient> given, const MultiHeadAttention& layer,
                                         const MultiHeadAttention::Saved& saved, const MultiHeadAttention::Gradients& gradients) {
  if (given.empty()) return;
  const MultiHeadAttentionConfig& c = layer.config;
  const auto allow = [&](bool allowed, const char* with) { require(allowed, operation, ": gradients of attention weights with ", with); };
  allow(c.softcap == 0, "softcap");
  allow(c.empty_rows == EmptyRows::zero, "empty_rows other than zero");
  allow(!(c.sink && gradients.parameters) && !gradients.sink, "a gradient of sink logits");
  allow(!gradients.bias && !gradients.relative_bias, "a gradient of a bias");
  Shape shape = saved.lse.shape();
  shape.erase(shape.size() - 2);
  shape.push_back(saved.k_heads.extent(-2));
  for (const AttentionWeightsGradient& one : given) {
    require(one.layer == 0, operation, ": gradients of the attention weights of layer ", one.layer, "; this is one layer");
    require(one.head >= 0 && one.head < c.heads, operation, ": gradients of the attention weights of head ", one.head, "; there are ", c.heads, " heads");
    require_exactly(operation, {"d_p", one.d_p}, shape, c.dtype);
  }
}

void add_attention_weights_gradients(std::span<const AttentionWeightsGradient> given, const MapsInput& input, const SdpaOptions& options,
                                     TensorView d_q, TensorView d_k) {
  if (given.empty() || (!d_q && !d_k)) return;
  const std::int64_t heads = input.q.extent(-3), group = heads / input.k.extent(-3), width = input.q.extent(-1);
  Shape shape = input.q.shape();
  shape[-1] = input.k.extent(-2);
  Tensor p = uninitialised(input.q.dtype(), shape, options.workspace);
  attention_map(input, p, options);
  const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(width)));
  const std::int64_t batch = numel(shape.first(shape.size() - 3)), pairs = shape[-1] * shape[-2];
  const auto of_head = [](const auto& view, std::int64_t head) { return view.select(-3, head); };
  // c += a b. Rows of b whose factors in `a` are all 0 are left out, because 0 x NaN is NaN.
  const auto add_product = [&](ConstTensorView a, ConstTensorView b, TensorView c) {
    const Tensor reached = without_unreached_rows(b, a.transpose(0, 1), options.executor, options.workspace);
    cpu::gemm({.a = a, .b = reached ? ConstTensorView(reached) : b, .c = c, .add = true}, options.executor, options.workspace);
  };
  dispatch_floating(p.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    parallel_for(batch, row_grain(pairs, 1), options.executor, [&](std::int64_t first, std::int64_t last) {
      Tensor d_x = uninitialised(p.dtype(), shape.last(2), options.workspace);
      for (std::int64_t b = first; b < last; ++b) {
        for (const AttentionWeightsGradient& one : given) {
          differentiate<T>(matrix(of_head(std::as_const(p).view(), one.head), b), matrix(one.d_p, b), scale, d_x);
          const std::int64_t kv_head = one.head / group;
          const ConstTensorView d = std::as_const(d_x).view();
          if (d_q) add_product(d, matrix(of_head(input.k, kv_head), b), matrix(of_head(d_q, one.head), b));
          if (d_k) add_product(d.transpose(0, 1), matrix(of_head(input.q, one.head), b), matrix(of_head(d_k, kv_head), b));
        }
      }
    });
  });
}

std::vector<AttentionWeightsGradient> of_layer(const char* operation, std::span<const AttentionWeightsGradient> given, std::size_t layer, std::size_t layers) {
  std::vector<AttentionWeightsGradient> own;
  for (const AttentionWeightsGradient& one : given) {
    require(one.layer >= 0 && one.layer < static_cast<std::int64_t>(layers), operation, ": gradients of the attention weights of layer ", one.layer,
            "; there are ", layers, " layers");
    if (one.layer == static_cast<std::int64_t>(layer)) own.push_back({0, one.head, one.d_p});
  }
  return own;
}

}  // namespace polyhead::nn
