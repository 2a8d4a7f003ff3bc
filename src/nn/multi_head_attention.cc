#include "polyhead/nn/multi_head_attention.h"

#include <vector>

#include "core/parallel.h"
#include "nn/attention_shapes.h"
#include "nn/check.h"
#include "nn/elementwise.h"
#include "nn/evaluation.h"
#include "polyhead/nn/activation.h"
#include "sdpa/dense_mask.h"

namespace polyhead::nn {
namespace {

constexpr const char* kForward = "MultiHeadAttention.forward";

bool restricts(const Mask& mask) {
  bool any = mask.causal || mask.window.left || mask.window.right;
  mask.visit([&](std::string_view, ConstTensorView) { any = true; });
  return any;
}

// What forward and backward read besides the parameters.
std::vector<Operand> inputs_of(const AttentionInput& input, const Mask& mask, const ConstTensorView& bias, const ConstTensorView& dropout_keep) {
  std::vector<Operand> inputs;
  inputs.reserve(11);  // and one more of backward
  const auto add = [&](std::string_view name, const ConstTensorView& view) {
    if (view) inputs.push_back({name, view});
  };
  add("query", input.query), add("key", input.key), add("value", input.value), add("bias", bias), add("dropout_keep", dropout_keep);
  mask.visit(add);
  return inputs;
}

Shape merged_shape(const MultiHeadAttentionConfig& c, const AttentionShapes& shapes) {
  return with_extents(shapes.query, shapes.axis, shapes.queries, c.heads * c.value_head_width);
}

Shape output_shape_of(const MultiHeadAttentionConfig& c, const AttentionShapes& shapes) {
  return with_extents(shapes.query, shapes.axis, c.gate == Gate::sigmoid ? shapes.positions : shapes.queries, c.output_width);
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
  return Tensor::copy_of(dense_mask(kForward, keys, shapes.lead, 1, 1, shapes.keys).view().reshape(shape));
}

// The axis next to the width: [.., L, .., E] -> [*,L,E].
template <class View>
View positions_last(const View& x, int axis) {
  return x.move_axis(axis, -2);
}

// A projected key or value: the linear map of the S positions, then the learned one, then zeros.
void project_keys(const PackedLinear& map, ConstTensorView x, const Tensor& learned, const AttentionShapes& shapes,
                  const AttentionOptions& options, Tensor& projected) {
  renew(projected, x.dtype(), with_extents(shapes.key, shapes.axis, shapes.keys + shapes.added_keys, map.out_width()), options.workspace);
  map.forward(x, projected.view().slice(shapes.axis, 0, shapes.keys), options.executor);
  if (shapes.added_keys == 0) return;
  const TensorView added = projected.view().slice(shapes.axis, shapes.keys, shapes.keys + shapes.added_keys);
  fill(added, 0);
  if (learned) {
    const TensorView slot = added.slice(shapes.axis, 0, 1);
    copy(learned.view().reshape({map.out_width()}).expand(slot.shape()), slot);
  }
}

void require_heads_fit_rank(const char* operation, const AttentionInput& input) {
  require(input.query.rank() + 2 <= kMaxRank, operation, ": query has ", input.query.rank(), " dimensions; at most ", kMaxRank - 2,
          " are allowed");
}

// The options of a call with mask and bias as views that broadcast to [*,N,T,S].
AttentionOptions aligned(const char* operation, const AttentionOptions& options, const AttentionShapes& shapes) {
  AttentionOptions own = options;
  own.mask = pair_mask(operation, options.mask, shapes);
  own.bias = pair_bias(operation, options.bias, shapes);
  return own;
}

// Whether what lies between the maps is read again.
enum class Purpose : std::uint8_t { output, backward };

PackedAttention maps_of(const MultiHeadAttention& layer, Products products, const AttentionOptions& options) {
  const auto packed = [&](const Linear& map) { return PackedLinear(map, products, options.executor, options.workspace); };
  PackedAttention maps{.q = packed(layer.q), .k = packed(layer.k), .v = packed(layer.v), .output = {}, .gate = {}};
  if (layer.config.output == OutputProjection::linear) maps.output = packed(layer.output);
  if (layer.config.gate == Gate::sigmoid) maps.gate = packed(layer.gate);
  return maps;
}

// x -> q, k, v -> heads -> sdpa -> merge -> gate -> output map      (docs/maths.md, eq. 11-15)
// Mask and bias are views that broadcast to [*,N,T,S]. s may hold the tensors of a pass before, whose memory is used again.
void run(const MultiHeadAttention& layer, const PackedAttention& maps, const AttentionInput& input, const AttentionShapes& shapes, TensorView out,
         const AttentionOptions& options, Purpose purpose, MultiHeadAttentionSaved& s) {
  const MultiHeadAttentionConfig& config = layer.config;
  const ConstTensorView key = input.key ? input.key : input.query, value = input.value ? input.value : key;
  if (config.global_query == GlobalQuery::off) {
    renew(s.q, config.dtype, with_extents(shapes.query, shapes.axis, shapes.queries, maps.q.out_width()), options.workspace);
    maps.q.forward(input.query, s.q, options.executor);
  } else {
    renew(s.query_mean, config.dtype, with_extents(shapes.query, shapes.axis, 1, config.query_width), options.workspace);
    s.mean_positions = mean_positions(config, shapes, options.mask);
    reduce_positions(positions_last(input.query, shapes.axis), s.mean_positions, Reduce::mean,
                     positions_last(s.query_mean.view(), shapes.axis), options.executor);
    renew(s.q, config.dtype, with_extents(shapes.query, shapes.axis, 1, maps.q.out_width()), options.workspace);
    maps.q.forward(s.query_mean, s.q, options.executor);
  }
  project_keys(maps.k, key, layer.bias_k, shapes, options, s.k);
  project_keys(maps.v, value, layer.bias_v, shapes, options, s.v);
  s.q_heads = split_heads(ConstTensorView(s.q), shapes.axis, config.heads);
  s.k_heads = split_heads(ConstTensorView(s.k), shapes.axis, config.kv_heads);
  s.v_heads = split_heads(ConstTensorView(s.v), shapes.axis, config.kv_heads);

  s.sdpa = {.scale = config.scale,
            .mask = options.mask,
            .bias = options.bias,
            .softcap = config.softcap,
            .empty_rows = config.empty_rows,
            .backend = options.backend};
  if (options.mode == Mode::training) s.sdpa.dropout = {config.dropout, options.dropout_seed, options.dropout_keep};
  if (shapes.added_keys > 0) {
    if (restricts(options.mask)) {
      s.padded_mask = padded_mask(kForward, options.mask, shapes);
      s.sdpa.mask = {.attend = s.padded_mask};
    }
    if (options.bias) {
      s.padded_bias = padded_bias(s.sdpa.bias, shapes);
      s.sdpa.bias = s.padded_bias;
    }
  }

  renew(s.attended, config.dtype, merged_shape(config, shapes), options.workspace);
  s.attended_heads = split_heads(ConstTensorView(s.attended), shapes.axis, config.heads);
  renew(s.lse, accumulation_dtype(config.dtype), s.q_heads.shape().first(s.q_heads.rank() - 1), options.workspace);
  SdpaOptions sdpa = s.sdpa;
  sdpa.executor = options.executor;  // which may be gone when s is read again
  sdpa_forward(
      {.q = s.q_heads, .k = s.k_heads, .v = s.v_heads, .out = split_heads(s.attended.view(), shapes.axis, config.heads), .lse = s.lse},
      sdpa);

  Tensor gated;
  if (config.gate == Gate::sigmoid) {
    renew(s.gate, config.dtype, with_extents(shapes.query, shapes.axis, shapes.positions, maps.gate.out_width()), options.workspace);
    maps.gate.forward(input.query, s.gate, options.executor);
    activate(Activation::sigmoid, s.gate, s.gate, options.executor);
    // What nobody asks for again is gated in place.
    const bool in_place = purpose == Purpose::output && s.attended.shape() == s.gate.shape();
    if (!in_place) gated = uninitialised(config.dtype, s.gate.shape(), options.workspace);
    multiply(s.attended, s.gate, in_place ? s.attended : gated, options.executor);
  }
  const ConstTensorView merged = gated ? ConstTensorView(gated) : ConstTensorView(s.attended);
  if (config.output == OutputProjection::linear) {
    maps.output.forward(merged, out, options.executor);
  } else {
    copy(merged, out);
  }
}

}  // namespace

Shape MultiHeadAttention::output_shape(const AttentionInput& input) const {
  const AttentionShapes shapes = attention_shapes("MultiHeadAttention", config, input);
  return output_shape_of(config, shapes);
}

Shape MultiHeadAttention::maps_shape(const AttentionInput& input) const {
  return maps_shape_of(config, attention_shapes("MultiHeadAttention", config, input));
}

AttentionEvaluation::AttentionEvaluation(const MultiHeadAttention& layer, const AttentionInput& input, const AttentionOptions& options)
    : AttentionEvaluation(layer, input, attention_shapes(kForward, layer.config, input), options) {}

AttentionEvaluation::AttentionEvaluation(const MultiHeadAttention& layer, const AttentionInput& input, const AttentionShapes& shapes,
                                         const AttentionOptions& options)
    : layer_(layer),
      input_(input),
      shapes_(shapes),
      options_(aligned(kForward, options, shapes_)),
      sequences_(layer.config, shapes_, options_) {
  require_heads_fit_rank(kForward, input);
  if (in_parts()) require_pairs(layer.config, shapes_, options_);
  maps_ = maps_of(layer, in_parts() ? Products::several : Products::one, options);
}

void AttentionEvaluation::run(std::int64_t part, TensorView out, MultiHeadAttentionSaved& between, Executor* executor) const {
  AttentionOptions own = in_parts() ? sequences_.of(options_, part) : options_;
  own.executor = executor;
  if (!in_parts()) return nn::run(layer_, maps_, input_, shapes_, out, own, Purpose::output, between);
  const AttentionInput some = sequences_.of(input_, part);
  nn::run(layer_, maps_, some, attention_shapes(kForward, layer_.config, some), out, own, Purpose::output, between);
}

void MultiHeadAttention::forward(const AttentionInput& input, TensorView out, const AttentionOptions& options,
                                 MultiHeadAttentionSaved* saved) const {
  constexpr const char* kOperation = kForward;
  const AttentionShapes shapes = attention_shapes(kOperation, config, input);
  require_heads_fit_rank(kOperation, input);
  require_tensor(kOperation, {"out", out}, config.dtype);
  require_shape(kOperation, {"out", out}, output_shape_of(config, shapes));
  const Operand written{"out", out};
  polyhead::require_separate(kOperation, {&written, 1}, inputs_of(input, options.mask, options.bias, options.dropout_keep));
  require_parameters_separate(kOperation, {written}, *this);
  if (saved == nullptr) {
    const AttentionEvaluation evaluation(*this, input, shapes, options);
    return evaluation.for_each_part([&](Executor* executor) {
      return [&, executor](std::int64_t part, MultiHeadAttentionSaved& between) { evaluation.run(part, evaluation.of(out, part), between, executor); };
    });
  }
  const AttentionOptions own = aligned(kOperation, options, shapes);
  MultiHeadAttentionSaved whole;  // the caller's only when it is complete
  *saved = {};
  whole.input = input;
  whole.bias = options.bias;
  if (options.workspace != nullptr) whole.workspace = *options.workspace;
  run(*this, maps_of(*this, Products::one, own), input, shapes, out, own, Purpose::backward, whole);
  *saved = std::move(whole);
}

// The chain of forward(), read from its end      (docs/maths.md, eq. 16-22)
void MultiHeadAttention::backward(const MultiHeadAttentionSaved& s, ConstTensorView d_out, const MultiHeadAttentionGradients& gradients,
                                  Executor* executor) const {
  constexpr const char* kOperation = "MultiHeadAttention.backward";
  require(static_cast<bool>(s.lse), kOperation, ": saved is empty; give it to forward first");
  const AttentionInput& input = s.input;
  const AttentionShapes shapes = attention_shapes(kOperation, config, input);
  require_tensor(kOperation, {"d_out", d_out}, config.dtype);
  require_shape(kOperation, {"d_out", d_out}, output_shape_of(config, shapes));
  std::vector<Operand> read = inputs_of(input, s.sdpa.mask, s.bias, s.sdpa.dropout.keep);
  read.push_back({"d_out", d_out});
  const Operand written[] = {{"the gradient of query", gradients.query},
                             {"the gradient of key", gradients.key},
                             {"the gradient of value", gradients.value},
                             {"the gradient of bias", gradients.bias, true}};
  const ConstTensorView gradient_of[] = {input.query, input.key, input.value, s.bias};
  for (std::size_t i = 0; i < std::size(written); ++i) {
    if (!written[i].view) continue;
    require(static_cast<bool>(gradient_of[i]), kOperation, ": ", written[i].name, " is asked for, which forward was not given");
    require_exactly(kOperation, written[i], gradient_of[i].shape(), config.dtype);
  }
  polyhead::require_separate(kOperation, written, read);
  require_parameters_separate(kOperation, {written[0], written[1], written[2], written[3]}, *this);
  MultiHeadAttention* grads = gradients.parameters;
  if (grads) require_gradients(kOperation, *this, *grads, read, written);
  const auto part = [&](Linear MultiHeadAttention::*map) { return grads ? &(grads->*map) : nullptr; };

  const Workspace* workspace = s.workspace ? &*s.workspace : nullptr;
  const auto room = [&](const Shape& shape) { return uninitialised(config.dtype, shape, workspace); };

  // out = output(attended * gate)
  Tensor d_merged, gated;
  if (config.gate == Gate::sigmoid) {
    gated = room(s.gate.shape());
    multiply(s.attended, s.gate, gated, executor);
  }
  if (config.output == OutputProjection::linear) {
    const ConstTensorView merged = gated ? ConstTensorView(gated) : ConstTensorView(s.attended);
    d_merged = room(merged.shape());
    output.backward(merged, d_out, d_merged, part(&MultiHeadAttention::output), Write::replace, executor);
  } else {
    d_merged = room(d_out.shape());
    copy(d_out, d_merged);
  }
  Tensor d_gate, d_attended;
  if (config.gate == Gate::sigmoid) {
    d_gate = std::move(gated);  // in its memory
    gate_backward(s.gate, s.attended, d_merged, d_gate, executor);
    if (s.attended.shape() == d_merged.shape()) {
      d_attended = std::move(d_merged);
    } else {  // every position was gated from the one global query
      d_attended = room(s.attended.shape());
      reduce_positions(positions_last(ConstTensorView(d_merged), shapes.axis), {}, Reduce::sum,
                       positions_last(d_attended.view(), shapes.axis), executor);
    }
  } else {
    d_attended = std::move(d_merged);
  }

  // attended = sdpa(q, k, v)
  Tensor d_q = room(s.q.shape()), d_k = room(s.k.shape());
  Tensor d_v = room(s.v.shape()), d_padded_bias;
  TensorView d_bias = pair_bias(kOperation, gradients.bias, shapes);
  if (d_bias && s.padded_bias) {
    d_padded_bias = Tensor(config.dtype, s.padded_bias.shape());
    d_bias = d_padded_bias;
  }
  SdpaOptions sdpa = s.sdpa;
  sdpa.executor = executor;
  sdpa_backward({.q = s.q_heads,
                 .k = s.k_heads,
                 .v = s.v_heads,
                 .out = s.attended_heads,
                 .lse = s.lse,
                 .d_out = split_heads(ConstTensorView(d_attended), shapes.axis, config.heads),
                 .d_q = split_heads(d_q.view(), shapes.axis, config.heads),
                 .d_k = split_heads(d_k.view(), shapes.axis, config.kv_heads),
                 .d_v = split_heads(d_v.view(), shapes.axis, config.kv_heads),
                 .d_bias = d_bias},
                sdpa);
  if (d_padded_bias) sum_to(d_padded_bias.view().slice(-1, 0, shapes.keys), pair_bias(kOperation, gradients.bias, shapes));

  // q = q(query), k = [k(key), bias_k, 0], v = [v(value), bias_v, 0], gate = sigmoid(gate(query))
  const ConstTensorView key = input.key ? input.key : input.query, value = input.value ? input.value : key;
  const TensorView d_query = gradients.query;
  const TensorView d_key = input.key ? gradients.key : d_query;
  const TensorView d_value = input.value ? gradients.value : d_key;
  if (config.global_query == GlobalQuery::off) {
    q.backward(input.query, d_q, d_query, part(&MultiHeadAttention::q), Write::replace, executor);
  } else {
    Tensor d_mean = room(s.query_mean.shape());
    q.backward(s.query_mean, d_q, d_mean, part(&MultiHeadAttention::q), Write::replace, executor);
    if (d_query) {
      spread_mean(positions_last(ConstTensorView(d_mean), shapes.axis), s.mean_positions, positions_last(d_query, shapes.axis), executor);
    }
  }
  const auto own_positions = [&](const Tensor& d) { return d.view().slice(shapes.axis, 0, shapes.keys); };
  k.backward(key, own_positions(d_k), d_key, part(&MultiHeadAttention::k), input.key ? Write::replace : Write::add, executor);
  v.backward(value, own_positions(d_v), d_value, part(&MultiHeadAttention::v), input.value ? Write::replace : Write::add, executor);
  if (config.gate == Gate::sigmoid) gate.backward(input.query, d_gate, d_query, part(&MultiHeadAttention::gate), Write::add, executor);
  if (config.add_bias_kv && grads) {
    const auto learned_gradient = [&](const Tensor& d, Tensor& learned) {
      sum_to(d.view().slice(shapes.axis, shapes.keys, shapes.keys + 1), learned.view().reshape({d.extent(-1)}));
    };
    learned_gradient(d_k, grads->bias_k);
    learned_gradient(d_v, grads->bias_v);
  }
}

}  // namespace polyhead::nn
