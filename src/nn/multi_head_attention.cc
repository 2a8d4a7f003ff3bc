#include "polyhead/nn/multi_head_attention.h"

#include "nn/attention_shapes.h"
#include "nn/check.h"
#include "nn/elementwise.h"
#include "sdpa/dense_mask.h"

namespace polyhead::nn {
namespace {

bool restricts(const Mask& mask) {
  return mask.causal || mask.window.left || mask.window.right || mask.key_lengths || mask.attend || mask.block || mask.attend_keys || mask.block_keys;
}

Shape merged_shape(const MultiHeadAttentionConfig& c, const AttentionShapes& shapes) {
  return with_extents(shapes.query, shapes.axis, shapes.queries, c.heads * c.value_head_width);
}

Shape maps_shape_of(const MultiHeadAttentionConfig& c, const AttentionShapes& shapes) {
  Shape shape = shapes.lead;
  for (const std::int64_t extent : {c.heads, shapes.queries, shapes.keys + shapes.added_keys}) shape.push_back(extent);
  return shape;
}

// [*,L] bool: the positions that a masked mean counts; absent for a plain mean.
Tensor mean_positions(const MultiHeadAttentionConfig& c, const AttentionShapes& shapes, const Mask& mask) {
  if (c.global_query != GlobalQuery::masked_mean) return {};
  const Mask keys{.key_lengths = mask.key_lengths, .attend_keys = mask.attend_keys, .block_keys = mask.block_keys};
  Shape shape = shapes.lead;
  shape.push_back(shapes.positions);
  return Tensor::copy_of(dense_mask(keys, shapes.lead, 1, 1, shapes.keys).view().reshape(shape));
}

// The axis next to the width: [.., L, .., E] -> [*,L,E].
template <class View>
View positions_last(const View& x, int axis) { return x.move_axis(axis, -2); }

// A projected key or value: the linear map of the S positions, then the learned one, then zeros.
Tensor project_keys(const Linear& map, ConstTensorView x, const Tensor& learned, const AttentionShapes& shapes, Executor* executor) {
  Tensor projected(map.weight.dtype(), with_extents(shapes.key, shapes.axis, shapes.keys + shapes.added_keys, map.out_width()));
  map.forward(x, projected.view().slice(shapes.axis, 0, shapes.keys), executor);
  if (learned) {
    const TensorView slot = projected.view().slice(shapes.axis, shapes.keys, shapes.keys + 1);
    copy(learned.view().reshape({map.out_width()}).expand(slot.shape()), slot);
  }
  return projected;
}

void require_heads_fit_rank(const char* operation, const AttentionInput& input) {
  require(input.query.rank() + 2 <= kMaxRank, operation, ": query has ", input.query.rank(), " dimensions; at most ", kMaxRank - 2, " are allowed");
}

}  // namespace

Shape MultiHeadAttention::output_shape(const AttentionInput& input) const {
  const AttentionShapes shapes = attention_shapes("MultiHeadAttention.output_shape", config, input);
  return with_extents(shapes.query, shapes.axis, config.gate == Gate::sigmoid ? shapes.positions : shapes.queries, config.output_width);
}

Shape MultiHeadAttention::maps_shape(const AttentionInput& input) const {
  return maps_shape_of(config, attention_shapes("MultiHeadAttention.maps_shape", config, input));
}

// x -> q, k, v -> heads -> sdpa -> merge -> gate -> output map      (docs/maths.md, eq. 11-15)
void MultiHeadAttention::forward(const AttentionInput& input, TensorView out, const AttentionOptions& options, MultiHeadAttentionSaved* saved) const {
  constexpr const char* kOperation = "MultiHeadAttention.forward";
  const AttentionShapes shapes = attention_shapes(kOperation, config, input);
  require_heads_fit_rank(kOperation, input);
  require_tensor(kOperation, {"out", out}, config.dtype);
  require_shape(kOperation, {"out", out}, output_shape(input));
  require_separate(kOperation, {"out", out}, {{"query", input.query}, {"key", input.key}, {"value", input.value}, {"bias", options.bias}});
  MultiHeadAttentionSaved local;
  MultiHeadAttentionSaved& s = saved ? *saved : local;
  s = {};
  s.input = input;

  const ConstTensorView key = input.key ? input.key : input.query, value = input.value ? input.value : key;
  const Mask mask = pair_mask(kOperation, options.mask, shapes);
  if (config.global_query == GlobalQuery::off) {
    s.q = Tensor(config.dtype, with_extents(shapes.query, shapes.axis, shapes.queries, q.out_width()));
    q.forward(input.query, s.q, options.executor);
  } else {
    s.query_mean = Tensor(config.dtype, with_extents(shapes.query, shapes.axis, 1, config.query_width));
    s.mean_positions = mean_positions(config, shapes, mask);
    reduce_positions(positions_last(input.query, shapes.axis), s.mean_positions, Reduce::mean,
                     positions_last(s.query_mean.view(), shapes.axis));
    s.q = Tensor(config.dtype, with_extents(shapes.query, shapes.axis, 1, q.out_width()));
    q.forward(s.query_mean, s.q, options.executor);
  }
  s.k = project_keys(k, key, bias_k, shapes, options.executor);
  s.v = project_keys(v, value, bias_v, shapes, options.executor);
  s.q_heads = split_heads(ConstTensorView(s.q), shapes.axis, config.heads);
  s.k_heads = split_heads(ConstTensorView(s.k), shapes.axis, config.kv_heads);
  s.v_heads = split_heads(ConstTensorView(s.v), shapes.axis, config.kv_heads);

  s.sdpa = {.scale = config.scale, .mask = mask, .bias = pair_bias(kOperation, options.bias, shapes), .softcap = config.softcap,
            .empty_rows = config.empty_rows, .backend = options.backend, .executor = options.executor};
  if (options.mode == Mode::training) s.sdpa.dropout = {config.dropout, options.dropout_seed, options.dropout_keep};
  if (shapes.added_keys > 0) {
    if (restricts(mask)) {
      s.padded_mask = padded_mask(mask, config.heads, shapes);
      s.sdpa.mask = {.attend = s.padded_mask};
    }
    if (options.bias) {
      s.padded_bias = padded_bias(s.sdpa.bias, shapes);
      s.sdpa.bias = s.padded_bias;
    }
  }

  s.attended = Tensor(config.dtype, merged_shape(config, shapes));
  s.attended_heads = split_heads(ConstTensorView(s.attended), shapes.axis, config.heads);
  s.lse = Tensor(accumulation_dtype(config.dtype), s.q_heads.shape().first(s.q_heads.rank() - 1));
  sdpa_forward({.q = s.q_heads, .k = s.k_heads, .v = s.v_heads, .out = split_heads(s.attended.view(), shapes.axis, config.heads), .lse = s.lse}, s.sdpa);

  Tensor gated;
  if (config.gate == Gate::sigmoid) {
    s.gate = Tensor(config.dtype, with_extents(shapes.query, shapes.axis, shapes.positions, gate.out_width()));
    gate.forward(input.query, s.gate, options.executor);
    sigmoid_in_place(s.gate);
    gated = Tensor(config.dtype, s.gate.shape());
    multiply(s.attended, s.gate, gated);
  }
  const ConstTensorView merged = gated ? ConstTensorView(gated) : ConstTensorView(s.attended);
  if (config.output == OutputMap::linear) {
    output.forward(merged, out, options.executor);
  } else {
    copy(merged, out);
  }
}

// The chain of forward(), read from its end      (docs/maths.md, eq. 16-22)
void MultiHeadAttention::backward(const MultiHeadAttentionSaved& s, ConstTensorView d_out, const MultiHeadAttentionGradients& gradients) const {
  constexpr const char* kOperation = "MultiHeadAttention.backward";
  require(static_cast<bool>(s.lse), kOperation, ": saved is empty; give it to forward first");
  const AttentionInput& input = s.input;
  const AttentionShapes shapes = attention_shapes(kOperation, config, input);
  Executor* executor = s.sdpa.executor;
  require_tensor(kOperation, {"d_out", d_out}, config.dtype);
  require_shape(kOperation, {"d_out", d_out}, output_shape(input));
  const auto check_gradient = [&](const char* name, TensorView gradient, ConstTensorView of) {
    if (!gradient) return;
    require(static_cast<bool>(of), kOperation, ": a gradient of ", name, " is asked for, which forward was not given");
    require_tensor(kOperation, {name, gradient}, config.dtype);
    require_shape(kOperation, {name, gradient}, of.shape());
    require_separate(kOperation, {name, gradient}, {{"query", input.query}, {"key", input.key}, {"value", input.value}, {"d_out", d_out}});
  };
  check_gradient("query", gradients.query, input.query);
  check_gradient("key", gradients.key, input.key);
  check_gradient("value", gradients.value, input.value);
  require(!gradients.query || !gradients.key || !overlaps(gradients.query, gradients.key), kOperation, ": the gradients of query and key overlap");
  require(!gradients.value || !((gradients.query && overlaps(gradients.query, gradients.value)) || (gradients.key && overlaps(gradients.key, gradients.value))),
          kOperation, ": the gradient of value overlaps another one");
  MultiHeadAttention* grads = gradients.parameters;
  const auto part = [&](Linear MultiHeadAttention::*map) { return grads ? &(grads->*map) : nullptr; };

  // out = output(attended * gate)
  Tensor d_merged, gated;
  if (config.gate == Gate::sigmoid) {
    gated = Tensor(config.dtype, s.gate.shape());
    multiply(s.attended, s.gate, gated);
  }
  if (config.output == OutputMap::linear) {
    const ConstTensorView merged = gated ? ConstTensorView(gated) : ConstTensorView(s.attended);
    d_merged = Tensor(config.dtype, merged.shape());
    output.backward(merged, d_out, d_merged, part(&MultiHeadAttention::output), Write::replace, executor);
  } else {
    d_merged = Tensor::copy_of(d_out);
  }
  Tensor d_gate, d_attended;
  if (config.gate == Gate::sigmoid) {
    d_gate = Tensor(config.dtype, s.gate.shape());
    sigmoid_backward(s.gate, s.attended, d_merged, d_gate);
    multiply(d_merged, s.gate, d_merged);
    if (s.attended.shape() == d_merged.shape()) {
      d_attended = std::move(d_merged);
    } else {  // every position was gated from the one global query
      d_attended = Tensor(config.dtype, s.attended.shape());
      reduce_positions(positions_last(ConstTensorView(d_merged), shapes.axis), {}, Reduce::sum, positions_last(d_attended.view(), shapes.axis));
    }
  } else {
    d_attended = std::move(d_merged);
  }

  // attended = sdpa(q, k, v)
  Tensor d_q(config.dtype, s.q.shape()), d_k(config.dtype, s.k.shape()), d_v(config.dtype, s.v.shape()), d_padded_bias;
  TensorView d_bias = pair_bias(kOperation, gradients.bias, shapes);
  if (d_bias && s.padded_bias) {
    d_padded_bias = Tensor(config.dtype, s.padded_bias.shape());
    d_bias = d_padded_bias;
  }
  sdpa_backward({.q = s.q_heads, .k = s.k_heads, .v = s.v_heads, .out = s.attended_heads, .lse = s.lse,
                 .d_out = split_heads(ConstTensorView(d_attended), shapes.axis, config.heads), .d_q = split_heads(d_q.view(), shapes.axis, config.heads),
                 .d_k = split_heads(d_k.view(), shapes.axis, config.kv_heads), .d_v = split_heads(d_v.view(), shapes.axis, config.kv_heads),
                 .d_bias = d_bias},
                s.sdpa);
  if (d_padded_bias) {
    fill(gradients.bias, 0);
    add(d_padded_bias.view().slice(-1, 0, shapes.keys), pair_bias(kOperation, gradients.bias, shapes));
  }

  // q = q(query), k = [k(key), bias_k, 0], v = [v(value), bias_v, 0], gate = sigmoid(gate(query))
  const ConstTensorView key = input.key ? input.key : input.query, value = input.value ? input.value : key;
  const TensorView d_query = gradients.query;
  const TensorView d_key = input.key ? gradients.key : d_query;
  const TensorView d_value = input.value ? gradients.value : d_key;
  if (config.global_query == GlobalQuery::off) {
    q.backward(input.query, d_q, d_query, part(&MultiHeadAttention::q), Write::replace, executor);
  } else {
    Tensor d_mean(config.dtype, s.query_mean.shape());
    q.backward(s.query_mean, d_q, d_mean, part(&MultiHeadAttention::q), Write::replace, executor);
    if (d_query) {
      spread_mean(positions_last(ConstTensorView(d_mean), shapes.axis), s.mean_positions, positions_last(d_query, shapes.axis));
    }
  }
  const auto own_positions = [&](const Tensor& d) { return d.view().slice(shapes.axis, 0, shapes.keys); };
  k.backward(key, own_positions(d_k), d_key, part(&MultiHeadAttention::k), input.key ? Write::replace : Write::add, executor);
  v.backward(value, own_positions(d_v), d_value, part(&MultiHeadAttention::v), input.value ? Write::replace : Write::add, executor);
  if (config.gate == Gate::sigmoid) gate.backward(input.query, d_gate, d_query, part(&MultiHeadAttention::gate), Write::add, executor);
  if (config.bias_kv && grads) {
    const auto learned_gradient = [&](const Tensor& d, Tensor& learned) {
      fill(learned, 0);
      const TensorView sums = learned.view().reshape({d.extent(-1)});
      add(d.view().slice(shapes.axis, shapes.keys, shapes.keys + 1), sums);
    };
    learned_gradient(d_k, grads->bias_k);
    learned_gradient(d_v, grads->bias_v);
  }
}

}  // namespace polyhead::nn
