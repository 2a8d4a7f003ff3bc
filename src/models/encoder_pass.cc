#include "models/encoder_pass.h"

#include <utility>

#include "core/text.h"
#include "nn/check.h"
#include "polyhead/maps.h"

namespace polyhead::models {

std::vector<WantedOutput> wanted(const LayerOutputs& outputs, const nn::LayerConfig& layer, std::int64_t layers, const Shape& x) {
  const std::int64_t tokens = x[-2];
  Shape lead{layers};
  for (const std::int64_t extent : x.first(x.size() - 2)) lead.push_back(extent);
  Shape all{layers + 1};
  for (const std::int64_t extent : x) all.push_back(extent);
  const Shape heads = appended(lead, {layer.heads, tokens, layer.width / layer.heads});
  return {{{"all_hidden", outputs.all_hidden}, all},
          {{"attentions", outputs.attentions}, appended(lead, {layer.heads, tokens, tokens})},
          {{"q", outputs.q}, heads},
          {{"k", outputs.k}, heads},
          {{"v", outputs.v}, heads}};
}

Tensor run_layers(const nn::Encoder& stack, Tensor x, const LayerOutputs& outputs, const nn::AttentionOptions& attention) {
  const std::int64_t layers = std::ssize(stack.layers);
  if (outputs.all_hidden) copy(x, outputs.all_hidden.select(0, 0));
  const bool of_heads = outputs.attentions || outputs.q || outputs.k || outputs.v;
  Tensor y = uninitialised(x.dtype(), x.shape(), attention.workspace);
  for (std::int64_t i = 0; i < layers; ++i) {
    nn::EncoderLayer::Saved saved;
    stack.layers[static_cast<std::size_t>(i)].forward(x, y, attention, of_heads ? &saved : nullptr);
    const nn::MultiHeadAttention::Saved& one = saved.attention;
    if (outputs.attentions) {
      SdpaOptions sdpa = one.sdpa;
      sdpa.executor = attention.executor;
      attention_map(one.maps(), outputs.attentions.select(0, i), sdpa);
    }
    if (outputs.q) copy(one.q_heads, outputs.q.select(0, i));
    if (outputs.k) copy(one.k_heads, outputs.k.select(0, i));
    if (outputs.v) copy(one.v_heads, outputs.v.select(0, i));
    if (outputs.all_hidden) copy(y, outputs.all_hidden.select(0, i + 1));
    saved = {};  // drop the views before their memory changes
    std::swap(x, y);
  }
  return x;
}

}  // namespace polyhead::models
