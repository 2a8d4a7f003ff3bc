#include <cmath>

#include "nn/check.h"
#include "nn/initialise.h"
#include "polyhead/nn/multi_head_attention.h"

namespace polyhead::nn {
namespace {

constexpr const char* kOperation = "MultiHeadAttention";

void require_linear(const char* name, const Linear& linear, std::int64_t out, std::int64_t in, DType dtype) {
  require_exactly(cat(kOperation, ".", name), {"weight", linear.weight}, {out, in}, dtype);
  if (linear.bias) require_exactly(cat(kOperation, ".", name), {"bias", linear.bias}, {out}, dtype);
}

}  // namespace

MultiHeadAttentionConfig completed(const MultiHeadAttentionConfig& given) {
  MultiHeadAttentionConfig c = given;
  const auto positive = [](const char* name, std::int64_t value) { require(value > 0, kOperation, ": ", name, " is ", value, "; it must be at least 1"); };
  const auto fill_in = [](std::int64_t& value, std::int64_t default_value) { value = value == 0 ? default_value : value; };
  positive("query_width", c.query_width);
  positive("heads", c.heads);
  fill_in(c.key_width, c.query_width);
  fill_in(c.value_width, c.key_width);
  fill_in(c.kv_heads, c.global_query == GlobalQuery::off ? c.heads : 1);
  require(c.head_width != 0 || c.query_width % c.heads == 0, kOperation, ": query_width ", c.query_width, " does not divide into ", c.heads,
          " heads; give head_width");
  fill_in(c.head_width, c.query_width / c.heads);
  fill_in(c.value_head_width, c.head_width);
  fill_in(c.output_width, c.query_width);
  positive("key_width", c.key_width);
  positive("value_width", c.value_width);
  positive("kv_heads", c.kv_heads);
  positive("head_width", c.head_width);
  positive("value_head_width", c.value_head_width);
  positive("output_width", c.output_width);
  require(c.heads % c.kv_heads == 0, kOperation, ": ", c.heads, " heads are not a multiple of ", c.kv_heads, " key/value heads");
  require(c.dropout >= 0 && c.dropout <= 1, kOperation, ": dropout is ", c.dropout, "; it must lie in [0,1]");
  require(is_floating(c.dtype), kOperation, ": the dtype is ", c.dtype, "; it must be floating");
  // Error if a product does not fit in 64 bits; later code computes only these products.
  const std::int64_t merged = numel({c.heads, c.value_head_width});
  numel({c.heads, c.head_width});
  if (c.output == OutputProjection::none) c.output_width = merged;
  return c;
}

MultiHeadAttention::MultiHeadAttention(const MultiHeadAttentionConfig& given) : config(completed(given)) {
  const MultiHeadAttentionConfig& c = config;
  Initialiser init(c.seed);
  const auto projection = [&](std::int64_t out, std::int64_t in, bool bias) {
    return Linear(Tensor(c.dtype, {out, in}), bias ? Tensor(c.dtype, {out}) : Tensor());
  };
  q = projection(c.heads * c.head_width, c.query_width, c.bias);
  k = projection(c.kv_heads * c.head_width, c.key_width, c.bias);
  v = projection(c.kv_heads * c.value_head_width, c.value_width, c.bias);
  // If the inputs have the same width, torch draws q, k and v as one packed [3E,E] weight, which makes the bound narrower.
  const bool packed = c.query_width == c.key_width && c.query_width == c.value_width;
  for (Linear* linear : {&q, &k, &v}) {
    if (packed) {
      const auto fans = static_cast<double>(c.query_width + q.out_width() + k.out_width() + v.out_width());
      init.uniform(linear->weight, -std::sqrt(6 / fans), std::sqrt(6 / fans));
    } else {
      init.xavier_uniform(linear->weight);
    }
  }
  if (c.output == OutputProjection::linear) {
    output = projection(c.output_width, c.heads * c.value_head_width, c.output_bias);
    init.linear(output.weight, {});
  }
  if (c.gate == Gate::sigmoid) {
    gate = projection(c.heads * c.value_head_width, c.query_width, true);
    fill(gate.bias, 1);
  }
  if (c.add_bias_kv) {
    bias_k = Tensor(c.dtype, {1, 1, k.out_width()});
    bias_v = Tensor(c.dtype, {1, 1, v.out_width()});
    // torch.nn.init.xavier_normal_ of a [1,1,E] tensor: fan_in = fan_out = E.
    init.normal(bias_k, 0, std::sqrt(1.0 / static_cast<double>(k.out_width())));
    init.normal(bias_v, 0, std::sqrt(1.0 / static_cast<double>(v.out_width())));
  }
}

MultiHeadAttention make_attention(const MultiHeadAttentionConfig& given, Linear q, Linear k, Linear v, Linear output, Linear gate, Tensor bias_k,
                                  Tensor bias_v) {
  MultiHeadAttention layer;
  layer.config = completed(given);
  const MultiHeadAttentionConfig& c = layer.config;
  const std::int64_t merged = c.heads * c.value_head_width;
  require_linear("q", q, c.heads * c.head_width, c.query_width, c.dtype);
  require_linear("k", k, c.kv_heads * c.head_width, c.key_width, c.dtype);
  require_linear("v", v, c.kv_heads * c.value_head_width, c.value_width, c.dtype);
  require(static_cast<bool>(output.weight) == (c.output == OutputProjection::linear), kOperation, ": an output projection is ",
          output.weight ? "given but not configured" : "configured but not given");
  require(static_cast<bool>(gate.weight) == (c.gate == Gate::sigmoid), kOperation, ": a gate is ",
          gate.weight ? "given but not configured" : "configured but not given");
  require(static_cast<bool>(bias_k) == c.add_bias_kv && static_cast<bool>(bias_v) == c.add_bias_kv, kOperation, ": bias_k and bias_v are ",
          c.add_bias_kv ? "configured but not both given" : "given but not configured");
  if (output.weight) require_linear("output", output, c.output_width, merged, c.dtype);
  if (gate.weight) require_linear("gate", gate, merged, c.query_width, c.dtype);
  if (bias_k) require_exactly(kOperation, {"bias_k", bias_k}, {1, 1, k.out_width()}, c.dtype);
  if (bias_v) require_exactly(kOperation, {"bias_v", bias_v}, {1, 1, v.out_width()}, c.dtype);
  layer.q = std::move(q);
  layer.k = std::move(k);
  layer.v = std::move(v);
  layer.output = std::move(output);
  layer.gate = std::move(gate);
  layer.bias_k = std::move(bias_k);
  layer.bias_v = std::move(bias_v);
  return layer;
}

}  // namespace polyhead::nn
