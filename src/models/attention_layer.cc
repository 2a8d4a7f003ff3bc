#include "polyhead/models/attention_layer.h"

#include <string>
#include <utility>

#include "core/text.h"

namespace polyhead::models {
namespace {

class Source {
 public:
  explicit Source(io::AttentionParameters& weights) : weights_(weights) {}

  Tensor take(const std::string& name) {
    const auto found = weights_.tensors.find(name);
    if (found == weights_.tensors.end()) return {};
    Tensor tensor = std::move(found->second);
    weights_.tensors.erase(found);
    return tensor;
  }
  nn::Linear linear(const std::string& name, bool required) {
    Tensor weight = take(name + ".weight");
    require(weight || !required, "attention_layer: ", weights_.layout, " gives no ", name, ".weight");
    if (!weight) return {};
    return nn::Linear(std::move(weight), take(name + ".bias"));
  }

 private:
  io::AttentionParameters& weights_;
};

}  // namespace

nn::MultiHeadAttention attention_layer(io::AttentionParameters weights, const nn::MultiHeadAttentionConfig& settings) {
  require(weights.heads > 0, "attention_layer: the number of heads is not in a file of layout ", weights.layout, "; give it");
  Source source(weights);
  nn::Linear q = source.linear("q", true), k = source.linear("k", true), v = source.linear("v", true);
  nn::Linear output = source.linear("output", false), gate = source.linear("gate", false);
  Tensor bias_k = source.take("bias_k"), bias_v = source.take("bias_v");
  std::string left;
  for (const auto& [name, tensor] : weights.tensors) append(left, cat(left.empty() ? "" : ", ", name, " ", tensor.shape()));
  require(left.empty(), "attention_layer: the layer has no place for ", left, "; leave it out where the layer shall do without");

  nn::MultiHeadAttentionConfig c = settings;
  c.heads = weights.heads;
  c.kv_heads = weights.kv_heads > 0 ? weights.kv_heads : weights.heads;
  require(q.out_width() % c.heads == 0, "attention_layer: the query map gives ", q.out_width(), " features, which ", c.heads,
          " heads do not divide");
  require(v.out_width() % c.kv_heads == 0, "attention_layer: the value map gives ", v.out_width(), " features, which ", c.kv_heads,
          " heads do not divide");
  c.query_width = q.in_width();
  c.key_width = k.in_width();
  c.value_width = v.in_width();
  c.head_width = q.out_width() / c.heads;
  c.value_head_width = v.out_width() / c.kv_heads;
  c.bias = static_cast<bool>(q.bias);
  c.output = output.weight ? nn::OutputProjection::linear : nn::OutputProjection::none;
  if (output.weight) c.output_width = output.out_width();
  c.output_bias = static_cast<bool>(output.bias);
  c.gate = gate.weight ? nn::Gate::sigmoid : nn::Gate::none;
  if (weights.global_query && c.global_query == nn::GlobalQuery::off) c.global_query = nn::GlobalQuery::mean;
  c.add_bias_kv = static_cast<bool>(bias_k);
  if (weights.scale) c.scale = weights.scale;
  if (weights.empty_rows) c.empty_rows = *weights.empty_rows;
  c.dtype = q.weight.dtype();
  return nn::make_attention(c, std::move(q), std::move(k), std::move(v), std::move(output), std::move(gate), std::move(bias_k),
                            std::move(bias_v));
}

io::AttentionParameters attention_parameters(const nn::MultiHeadAttention& layer, std::string_view layout, std::string_view prefix) {
  io::AttentionParameters weights;
  weights.layout = layout;
  weights.prefix = prefix;
  weights.heads = layer.config.heads;
  weights.kv_heads = layer.config.kv_heads;
  weights.scale = layer.config.scale;
  weights.empty_rows = layer.config.empty_rows;
  weights.global_query = layer.config.global_query != nn::GlobalQuery::off;
  layer.visit([&](const std::string& name, const Tensor& tensor) { weights.tensors.emplace(name, tensor); });
  return weights;
}

}  // namespace polyhead::models
