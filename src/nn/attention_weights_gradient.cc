#include "nn/attention_weights_gradient.h"

#include <vector>

#include "nn/check.h"
#include "polyhead/map_gradients.h"

namespace polyhead::nn {

void require_attention_weights_gradients(const char* operation, std::span<const AttentionWeightsGradient> given, const MultiHeadAttention& layer,
                                         const MultiHeadAttention::Saved& saved, const MultiHeadAttention::Gradients& gradients) {
  if (given.empty()) return;
  const MultiHeadAttentionConfig& c = layer.config;
  const auto allow = [&](bool allowed, const char* with) { require(allowed, operation, ": gradients of attention weights cannot be computed with ", with); };
  allow(c.empty_rows != EmptyRows::uniform, "empty_rows uniform");
  allow(!(c.sink && gradients.parameters) && !gradients.sink, "a gradient of sink logits");
  allow(!gradients.bias && !gradients.relative_bias, "a gradient of a bias");
  allow(!saved.sdpa.score_rule, "a score rule");
  Shape shape = saved.lse.shape();
  shape.erase(shape.size() - 2);
  shape.push_back(saved.k_heads.extent(-2));
  for (const AttentionWeightsGradient& one : given) {
    require(one.layer == 0, operation, ": a gradient of attention weights is given for layer ", one.layer, "; this is a single layer");
    require(one.head >= 0 && one.head < c.heads, operation, ": a gradient of attention weights is given for head ", one.head, "; there are ", c.heads, " heads");
    require_exactly(operation, {"d_p", one.d_p}, shape, c.dtype);
  }
}

void add_attention_weights_gradients(std::span<const AttentionWeightsGradient> given, const MapsInput& input, const SdpaOptions& options,
                                     TensorView d_q, TensorView d_k) {
  if (!d_q && !d_k) return;
  for (const AttentionWeightsGradient& one : given)
    attention_map_backward(input, {.d_map = one.d_p.unsqueeze(-3), .heads = {&one.head, 1}, .d_q = d_q, .d_k = d_k, .add = true}, options);
}

std::vector<AttentionWeightsGradient> of_layer(const char* operation, std::span<const AttentionWeightsGradient> given, std::size_t layer, std::size_t layers) {
  std::vector<AttentionWeightsGradient> own;
  for (const AttentionWeightsGradient& one : given) {
    require(one.layer >= 0 && one.layer < static_cast<std::int64_t>(layers), operation, ": a gradient of attention weights is given for layer ", one.layer,
            "; there are ", layers, " layers");
    if (one.layer == static_cast<std::int64_t>(layer)) own.push_back({0, one.head, one.d_p});
  }
  return own;
}

}  // namespace polyhead::nn
