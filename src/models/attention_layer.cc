#include "polyhead/models/attention_layer.h"

#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/join.h"

namespace polyhead::models {

nn::MultiHeadAttention attention_layer(io::AttentionParameters parameters, const nn::MultiHeadAttentionConfig& settings) {
  require(parameters.heads > 0, "attention_layer: a file in the layout ", parameters.layout, " does not hold the number of heads; give it as settings.heads");
  const auto take = [&](const std::string& name) {
    auto node = parameters.tensors.extract(name);
    return node.empty() ? Tensor() : std::move(node.mapped());
  };
  const auto linear = [&](const std::string& name, bool required) {
    Tensor weight = take(name + ".weight");
    require(weight || !required, "attention_layer: ", parameters.layout, " has no ", name, ".weight");
    return weight ? nn::Linear(std::move(weight), take(name + ".bias")) : nn::Linear();
  };
  nn::Linear q = linear("q", true), k = linear("k", true), v = linear("v", true), output = linear("output", false), gate = linear("gate", false);
  Tensor bias_k = take("bias_k"), bias_v = take("bias_v"), sink = take("sink");
  const auto left = [](const auto& entry) { return cat(entry.first, " ", entry.second.shape()); };
  require(parameters.tensors.empty(), "attention_layer: the layer has no place for ", join(parameters.tensors, left),
          "; remove it to build the layer without it");

  // Checks that a setting does not contradict the parameters. `is_set`: the setting differs from its default.
  const auto agree = [](bool is_set, std::string_view name, const auto& set, const auto& found) {
    require(!is_set || set == found, "attention_layer: settings.", name, " is ", set, "; by the parameters it is ", found);
  };
  const auto agree_to = [](bool agrees, std::string_view setting, std::string_view found) {
    require(agrees, "attention_layer: settings.", setting, "; the parameters have ", found);
  };
  nn::MultiHeadAttentionConfig c = settings;
  c.heads = parameters.heads;
  c.kv_heads = parameters.kv_heads > 0 ? parameters.kv_heads : parameters.heads;
  require(q.out_width() % c.heads == 0, "attention_layer: the query projection has ", q.out_width(), " features, which ", c.heads,
          " heads do not divide");
  require(v.out_width() % c.kv_heads == 0, "attention_layer: the value projection has ", v.out_width(), " features, which ", c.kv_heads,
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
  if (parameters.global_query && c.global_query == nn::GlobalQuery::off) c.global_query = nn::GlobalQuery::mean;
  c.add_bias_kv = static_cast<bool>(bias_k);
  c.sink = static_cast<bool>(sink);
  if (parameters.scale) c.scale = parameters.scale;
  if (parameters.empty_rows) c.empty_rows = *parameters.empty_rows;
  c.dtype = q.weight.dtype();
  const std::tuple<std::string_view, std::int64_t, std::int64_t, std::int64_t> sizes[] = {
      {"query_width", settings.query_width, 0, c.query_width},
      {"key_width", settings.key_width, 0, c.key_width},
      {"value_width", settings.value_width, 0, c.value_width},
      {"heads", settings.heads, 1, c.heads},
      {"kv_heads", settings.kv_heads, 0, c.kv_heads},
      {"head_width", settings.head_width, 0, c.head_width},
      {"value_head_width", settings.value_head_width, 0, c.value_head_width},
      {"output_width", settings.output_width, 0, output.weight ? output.out_width() : v.out_width() / c.kv_heads * c.heads}};
  for (const auto& [name, set, unset, found] : sizes) agree(set != unset, name, set, found);
  if (parameters.scale) agree(settings.scale.has_value(), "scale", settings.scale.value_or(0), *parameters.scale);
  agree_to(settings.empty_rows == nn::MultiHeadAttentionConfig().empty_rows || !parameters.empty_rows || settings.empty_rows == *parameters.empty_rows,
           "empty_rows is given", "other empty_rows, which follow from their layout");
  agree_to(settings.bias || !c.bias, "bias is false", "q.bias");
  agree_to(settings.output_bias || !c.output_bias, "output_bias is false", "output.bias");
  agree_to(settings.output == nn::OutputProjection::linear || !output.weight, "output is none", "output.weight");
  agree_to(settings.gate == nn::Gate::none || gate.weight, "gate is sigmoid", "no gate.weight");
  agree_to(!settings.add_bias_kv || bias_k, "add_bias_kv is true", "no bias_k");
  agree_to(!settings.sink || sink, "sink is true", "no sink");
  agree_to(!settings.qk_norm, "qk_norm is true", "no q_norm.weight");
  require(settings.global_query == nn::GlobalQuery::off || parameters.global_query,
          "attention_layer: a global query is asked for (global_query, masked_mean); the parameters have none");
  return nn::make_attention(c, std::move(q), std::move(k), std::move(v), std::move(output), std::move(gate), std::move(bias_k),
                            std::move(bias_v), std::move(sink));
}

io::AttentionParameters attention_parameters(const nn::MultiHeadAttention& layer, std::string_view layout, std::string_view prefix) {
  io::AttentionParameters parameters;
  parameters.layout = layout;
  parameters.prefix = prefix;
  parameters.heads = layer.config.heads;
  parameters.kv_heads = layer.config.kv_heads;
  parameters.scale = layer.config.scale;
  parameters.empty_rows = layer.config.empty_rows;
  parameters.global_query = layer.config.global_query != nn::GlobalQuery::off;
  layer.visit([&](const std::string& name, const Tensor& tensor) { parameters.tensors.emplace(name, tensor); });
  return parameters;
}

}  // namespace polyhead::models
