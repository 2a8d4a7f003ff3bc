#include <cmath>

#include "core/option_words.h"
#include "nn/check.h"
#include "nn/initialiser.h"
#include "polyhead/nn/multi_head_attention.h"

namespace polyhead::nn {
namespace {

static_assert(word_of(GlobalQuery::off, kGlobalQueryWords) == "off" && word_of(GlobalQuery::mean, kGlobalQueryWords) == "mean" &&
              word_of(GlobalQuery::masked_mean, kGlobalQueryWords) == "masked_mean");

constexpr const char* kOperation = "MultiHeadAttention";

// Calls f(name, linear, out_width, in_width, has_bias) for each projection that the layer's configuration has.
template <class F>
void for_each_projection(MultiHeadAttention& layer, const F& f) {
  const MultiHeadAttentionConfig& c = layer.config;
  const std::int64_t merged = c.heads * c.value_head_width;
  f("q", layer.q, c.heads * c.head_width, c.query_width, c.bias);
  f("k", layer.k, c.kv_heads * c.head_width, c.key_width, c.bias);
  f("v", layer.v, c.kv_heads * c.value_head_width, c.value_width, c.bias);
  if (c.output == OutputProjection::linear) f("output", layer.output, c.output_width, merged, c.output_bias);
  if (c.gate == Gate::sigmoid) f("gate", layer.gate, merged, c.query_width, true);
}

}  // namespace

MultiHeadAttentionConfig completed(const MultiHeadAttentionConfig& given) {
  MultiHeadAttentionConfig c = given;
  const auto positive = [](const char* name, std::int64_t value) {
    require(value > 0, kOperation, ": ", name, " is ", value, "; it must be at least 1");
  };
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
  require(!c.sink || c.empty_rows == EmptyRows::zero, kOperation, ": sink cannot be combined with empty_rows ", word_of(c.empty_rows),
          "; with a sink, the output of a row without keys is 0, so empty_rows must be zero");
  require(c.axis != -1, kOperation, ": axis is -1, the axis of the width; attention runs along another axis");
  require(!c.scale || std::isfinite(*c.scale), kOperation, ": scale is ", c.scale.value_or(0), "; it must be finite");
  require(c.softcap >= 0 && !std::isinf(c.softcap), kOperation, ": softcap is ", c.softcap, "; it must be finite and at least 0");
  require(is_floating(c.dtype), kOperation, ": the dtype is ", c.dtype, "; it must be floating");
  // numel() throws an Error if heads times width does not fit in 64 bits. Later code multiplies no other sizes of the configuration.
  const std::int64_t merged = numel({c.heads, c.value_head_width});
  numel({c.heads, c.head_width});
  require(c.output == OutputProjection::linear || given.output_width == 0 || given.output_width == merged, kOperation, ": output_width is ", given.output_width,
          " without an output projection; the output is the merged heads, ", merged, " wide");
  if (c.output == OutputProjection::none) c.output_width = merged;
  return c;
}

MultiHeadAttention::MultiHeadAttention(const MultiHeadAttentionConfig& given) : config(completed(given)) {
  const MultiHeadAttentionConfig& c = config;
  Initialiser init(required_seed(kOperation, c.seed));
  for_each_projection(*this, [&](const char*, Linear& linear, std::int64_t out, std::int64_t in, bool bias) {
    linear = Linear(Tensor(c.dtype, {out, in}), bias ? Tensor(c.dtype, {out}) : Tensor());
  });
  // If all inputs have the same width, torch draws q, k and v as one packed weight [3E,E], which makes the bounds of the uniform distribution narrower.
  const bool packed = c.query_width == c.key_width && c.query_width == c.value_width;
  for (Linear* linear : {&q, &k, &v}) {
    if (packed) {
      const auto fans = static_cast<double>(c.query_width + q.out_width() + k.out_width() + v.out_width());
      init.uniform(linear->weight, -std::sqrt(6 / fans), std::sqrt(6 / fans));
    } else {
      init.xavier_uniform(linear->weight);
    }
  }
  if (output.weight) init.linear(output.weight, {});
  if (gate.weight) fill(gate.bias, 1);
  if (c.add_bias_kv) {
    bias_k = Tensor(c.dtype, {1, 1, k.out_width()});
    bias_v = Tensor(c.dtype, {1, 1, v.out_width()});
    // torch calls xavier_normal_ for a [1,1,E] tensor, where fan_in = fan_out = E
    init.normal(bias_k, 0, std::sqrt(1.0 / static_cast<double>(k.out_width())));
    init.normal(bias_v, 0, std::sqrt(1.0 / static_cast<double>(v.out_width())));
  }
  if (c.sink) sink = Tensor(c.dtype, {c.heads});
  if (c.qk_norm) q_norm = k_norm = RMSNorm({.width = c.head_width, .epsilon = 1e-6, .dtype = c.dtype});
}

MultiHeadAttention make_attention(const MultiHeadAttentionConfig& given, Linear q, Linear k, Linear v, Linear output, Linear gate,
                                  Tensor bias_k, Tensor bias_v, Tensor sink, RMSNorm q_norm, RMSNorm k_norm) {
  MultiHeadAttention layer;
  layer.config = completed(given);
  layer.q = std::move(q);
  layer.k = std::move(k);
  layer.v = std::move(v);
  layer.output = std::move(output);
  layer.gate = std::move(gate);
  layer.bias_k = std::move(bias_k);
  layer.bias_v = std::move(bias_v);
  layer.sink = std::move(sink);
  layer.q_norm = std::move(q_norm);
  layer.k_norm = std::move(k_norm);
  const MultiHeadAttentionConfig& c = layer.config;
  const auto require_as_configured = [](bool is_given, bool configured, const char* what, const char* missing) {
    require(is_given == configured, kOperation, ": ", what, configured ? missing : "given but not configured");
  };
  require_as_configured(static_cast<bool>(layer.output.weight), c.output == OutputProjection::linear, "an output projection is ",
                        "configured but not given");
  require_as_configured(static_cast<bool>(layer.gate.weight), c.gate == Gate::sigmoid, "a gate is ", "configured but not given");
  for (const Tensor* learned : {&layer.bias_k, &layer.bias_v}) {
    require_as_configured(static_cast<bool>(*learned), c.add_bias_kv, "bias_k and bias_v are ", "configured but not both given");
  }
  require_as_configured(static_cast<bool>(layer.sink), c.sink, "sink logits are ", "configured but not given");
  for (const RMSNorm* norm : {&layer.q_norm, &layer.k_norm}) {
    require_as_configured(static_cast<bool>(norm->weight), c.qk_norm, "q_norm and k_norm are ", "configured but not both given");
    if (c.qk_norm) require_exactly(cat(kOperation, norm == &layer.q_norm ? ".q_norm" : ".k_norm"), {"weight", norm->weight}, {c.head_width}, c.dtype);
  }
  for_each_projection(layer, [&](const char* name, const Linear& linear, std::int64_t out, std::int64_t in, bool has_bias) {
    require_exactly(cat(kOperation, ".", name), {"weight", linear.weight}, {out, in}, c.dtype);
    if (&linear != &layer.gate) {  // the configuration does not say whether the gate has a bias, so that is not checked
      const bool is_output = &linear == &layer.output;
      require(static_cast<bool>(linear.bias) == has_bias, kOperation, ".", name, ": a bias is ", has_bias ? "missing" : "given", "; ",
              is_output ? "output_bias" : "bias", has_bias ? " is true" : " is false", is_output ? "" : ", for q, k and v alike");
    }
    if (linear.bias) require_exactly(cat(kOperation, ".", name), {"bias", linear.bias}, {out}, c.dtype);
  });
  if (c.add_bias_kv) require_exactly(kOperation, {"bias_k", layer.bias_k}, {1, 1, layer.k.out_width()}, c.dtype);
  if (c.add_bias_kv) require_exactly(kOperation, {"bias_v", layer.bias_v}, {1, 1, layer.v.out_width()}, c.dtype);
  if (c.sink) require_exactly(kOperation, {"sink", layer.sink}, {c.heads}, c.dtype);
  return layer;
}

}  // namespace polyhead::nn
