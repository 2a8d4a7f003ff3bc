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

// Projected keys or values: those of the S positions, then the learned one, then zeros.
void project_keys(const PackedLinear& projection, ConstTensorView x, const Tensor& learned, const AttentionShapes& shapes,
                  const AttentionOptions& options, Tensor& projected) {
  renew(projected, x.dtype(), with_extents(shapes.key, shapes.axis, shapes.keys + shapes.added_keys, projection.out_width()), options.workspace);
  projection.forward(x, projected.view().slice(shapes.axis, 0, shapes.keys), options.executor);
  if (shapes.added_keys == 0) return;
  const TensorView added = projected.view().slice(shapes.axis, shapes.keys, shapes.keys + shapes.added_keys);
  fill(added, 0);
  if (learned) {
    const TensorView slot = added.slice(shapes.axis, 0, 1);
    copy(learned.view().reshape({projection.out_width()}).expand(slot.shape()), slot);
  }
}

// Error that names the first difference which would make gradients wrong.
void require_same_structure(const char* operation, const MultiHeadAttentionConfig& saved, const MultiHeadAttentionConfig& own) {
  const auto same = [&](const char* name, const auto& of_saved, const auto& of_own) {
    require(of_saved == of_own, operation, ": saved comes from a layer with ", name, " ", of_saved, "; this one has ", of_own);
  };
  same("dtype", saved.dtype, own.dtype);
  same("query_width", saved.query_width, own.query_width);
  same("key_width", saved.key_width, own.key_width);
  same("value_width", saved.value_width, own.value_width);
  same("heads", saved.heads, own.heads);
  same("kv_heads", saved.kv_heads, own.kv_heads);
  same("head_width", saved.head_width, own.head_width);
  same("value_head_width", saved.value_head_width, own.value_head_width);
  same("output_width", saved.output_width, own.output_width);
  same("axis", saved.axis, own.axis);
  static constexpr const char *kYes[] = {"no", "yes"}, *kGlobalQueries[] = {"off", "mean", "masked_mean"};
  same("an output projection:", kYes[saved.output == OutputProjection::linear], kYes[own.output == OutputProjection::linear]);
  same("a gate:", kYes[saved.gate == Gate::sigmoid], kYes[own.gate == Gate::sigmoid]);
  same("global_query", kGlobalQueries[static_cast<int>(saved.global_query)], kGlobalQueries[static_cast<int>(own.global_query)]);
  same("add_bias_kv:", kYes[saved.add_bias_kv], kYes[own.add_bias_kv]);
  same("add_zero_attn:", kYes[saved.add_zero_attn], kYes[own.add_zero_attn]);
}

void require_heads_fit_rank(const char* operation, const AttentionInput& input) {
  require(input.query.rank() + 2 <= kMaxRank, operation, ": query has ", input.query.rank(), " dimensions; at most ", kMaxRank - 2,
          " are allowed");
}

void require_options(const char* operation, const MultiHeadAttentionConfig& config, const AttentionOptions& options, const AttentionShapes& shapes) {
  require_pairs(operation, "attend", options.mask.attend, shapes);
  require_pairs(operation, "block", options.mask.block, shapes);
  require_pairs(operation, "bias", options.bias, shapes);
  if (options.mode == Mode::evaluation) return;
  require_pairs(operation, "dropout_keep", options.dropout_keep, shapes, shapes.added_keys);
  require(config.dropout == 0 || options.dropout_seed || options.dropout_keep, operation,
          ": dropout in training needs dropout_seed, a new one for each step, or dropout_keep");
  require(!keeps_parameters(options.workspace), operation,
          ": training with a workspace of Parameters::constant, which keeps copies of the parameters of the first call; use Parameters::may_change");
}

// Whether the activations are read again.
enum class Purpose : std::uint8_t { output, backward };

PackedAttention packed_projections(const MultiHeadAttention& layer, Products products, const AttentionOptions& options) {
  const auto packed = [&](const Linear& linear) { return PackedLinear(linear, products, {options.executor, options.workspace}); };
  PackedAttention projections{.q = packed(layer.q), .k = packed(layer.k), .v = packed(layer.v), .output = {}, .gate = {}};
  if (layer.config.output == OutputProjection::linear) projections.output = packed(layer.output);
  if (layer.config.gate == Gate::sigmoid) projections.gate = packed(layer.gate);
  return projections;
}

// x -> q, k, v -> heads -> sdpa -> merge -> gate -> output projection      (docs/maths.md, eq. 11-15)
// Mask and bias broadcast to [*,N,T,S]. `s` may hold tensors of an earlier pass, whose memory is reused.
void run(const MultiHeadAttention& layer, const PackedAttention& projections, const AttentionInput& input, const AttentionShapes& shapes, TensorView out,
         const AttentionOptions& options, Purpose purpose, MultiHeadAttention::Activations& s) {
  const MultiHeadAttentionConfig& config = layer.config;
  const ConstTensorView key = input.key ? input.key : input.query, value = input.value ? input.value : key;
  if (config.global_query == GlobalQuery::off) {
    renew(s.q, config.dtype, with_extents(shapes.query, shapes.axis, shapes.queries, projections.q.out_width()), options.workspace);
    projections.q.forward(input.query, s.q, options.executor);
  } else {
    renew(s.query_mean, config.dtype, with_extents(shapes.query, shapes.axis, 1, config.query_width), options.workspace);
    s.mean_positions = mean_positions(config, shapes, options.mask);
    reduce_positions(positions_last(input.query, shapes.axis), s.mean_positions, Reduce::mean,
                     positions_last(s.query_mean.view(), shapes.axis), options.executor);
    renew(s.q, config.dtype, with_extents(shapes.query, shapes.axis, 1, projections.q.out_width()), options.workspace);
    projections.q.forward(s.query_mean, s.q, options.executor);
  }
  project_keys(projections.k, key, layer.bias_k, shapes, options, s.k);
  project_keys(projections.v, value, layer.bias_v, shapes, options, s.v);
  s.q_heads = split_heads(ConstTensorView(s.q), shapes.axis, config.heads);
  s.k_heads = split_heads(ConstTensorView(s.k), shapes.axis, config.kv_heads);
  s.v_heads = split_heads(ConstTensorView(s.v), shapes.axis, config.kv_heads);

  s.sdpa = {.scale = config.scale,
            .mask = options.mask,
            .bias = options.bias,
            .softcap = config.softcap,
            .empty_rows = config.empty_rows,
            .backend = options.backend};
  if (options.mode == Mode::training) s.sdpa.dropout = {config.dropout, options.dropout_seed.value_or(0), options.dropout_keep};
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
    renew(s.gate, config.dtype, with_extents(shapes.query, shapes.axis, shapes.positions, projections.gate.out_width()), options.workspace);
    projections.gate.forward(input.query, s.gate, options.executor);
    activate(Activation::sigmoid, s.gate, s.gate, options.executor);
    // Evaluation does not read the ungated heads again, so gate in place.
    const bool in_place = purpose == Purpose::output && s.attended.shape() == s.gate.shape();
    if (!in_place) gated = uninitialised(config.dtype, s.gate.shape(), options.workspace);
    multiply(s.attended, s.gate, in_place ? s.attended : gated, options.executor);
  }
  const ConstTensorView merged = gated ? ConstTensorView(gated) : ConstTensorView(s.attended);
  if (config.output == OutputProjection::linear) {
    projections.output.forward(merged, out, options.executor);
  } else {
    copy(merged, out);
  }
}

}  // namespace

MultiHeadAttention MultiHeadAttention::zeros() const {
  MultiHeadAttention zeros;
  zeros.config = config;
  zeros.q = q.zeros(), zeros.k = k.zeros(), zeros.v = v.zeros(), zeros.output = output.zeros(), zeros.gate = gate.zeros();
  zeros.bias_k = zeros_like(bias_k), zeros.bias_v = zeros_like(bias_v);
  return zeros;
}

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
      options_(options),
      sequences_(layer.config, shapes_, options_) {
  require_heads_fit_rank(kForward, input);
  require_options(kForward, layer.config, options, shapes_);
  if (in_parts()) require_mask_and_bias(layer.config, shapes_, options_);
  projections_ = packed_projections(layer, in_parts() ? Products::several : Products::one, options);
}

void AttentionEvaluation::run(std::int64_t part, TensorView out, MultiHeadAttention::Activations& between, Executor* executor) const {
  AttentionOptions own = in_parts() ? sequences_.of(options_, part) : options_;
  own.executor = executor;
  if (!in_parts()) return nn::run(layer_, projections_, input_, shapes_, out, own, Purpose::output, between);
  const AttentionInput some = sequences_.of(input_, part);
  nn::run(layer_, projections_, some, attention_shapes(kForward, layer_.config, some), out, own, Purpose::output, between);
}

void MultiHeadAttention::forward(const AttentionInput& input, TensorView out, const AttentionOptions& options, Saved* saved) const {
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
      return [&, executor](std::int64_t part, MultiHeadAttention::Activations& between) { evaluation.run(part, evaluation.of(out, part), between, executor); };
    });
  }
  require_options(kOperation, config, options, shapes);
  Saved whole;  // becomes the caller's when it is complete
  *saved = {};
  whole.input = input;
  whole.bias = options.bias;
  whole.config = config;
  whole.constant_parameters = keeps_parameters(options.workspace);
  run(*this, packed_projections(*this, Products::one, options), input, shapes, out, options, Purpose::backward, whole);
  *saved = std::move(whole);
}

// The steps of forward() from the last to the first      (docs/maths.md, eq. 16-22)
void MultiHeadAttention::backward(const Saved& s, ConstTensorView d_out, const Gradients& gradients, const RunOptions& options) const {
  constexpr const char* kOperation = "MultiHeadAttention.backward";
  Executor* const executor = options.executor;
  require(static_cast<bool>(s.lse), kOperation, ": saved is empty; give it to forward first");
  require_same_structure(kOperation, s.config, config);
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
  if (grads) {
    require_parameters_may_change(kOperation, s.constant_parameters, options.workspace);
    require_gradients(kOperation, *this, *grads, read, written);
  }
  const auto of = [&](Linear MultiHeadAttention::*projection) { return grads ? &(grads->*projection) : nullptr; };
  const auto room = [&](const Shape& shape) { return uninitialised(config.dtype, shape, options.workspace); };

  // out = output(attended * gate)
  Tensor d_merged, gated;
  if (config.gate == Gate::sigmoid) {
    gated = room(s.gate.shape());
    multiply(s.attended, s.gate, gated, executor);
  }
  if (config.output == OutputProjection::linear) {
    const ConstTensorView merged = gated ? ConstTensorView(gated) : ConstTensorView(s.attended);
    d_merged = room(merged.shape());
    output.backward(merged, d_out, {.x = d_merged, .parameters = of(&MultiHeadAttention::output)}, options);
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
  TensorView d_bias = gradients.bias;
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
  if (d_padded_bias) sum_to(d_padded_bias.view().slice(-1, 0, shapes.keys), gradients.bias);

  // q = q(query), k = [k(key), bias_k, 0], v = [v(value), bias_v, 0], gate = sigmoid(gate(query))
  const ConstTensorView key = input.key ? input.key : input.query, value = input.value ? input.value : key;
  const TensorView d_query = gradients.query;
  const TensorView d_key = input.key ? gradients.key : d_query;
  const TensorView d_value = input.value ? gradients.value : d_key;
  if (config.global_query == GlobalQuery::off) {
    q.backward(input.query, d_q, {.x = d_query, .parameters = of(&MultiHeadAttention::q)}, options);
  } else {
    Tensor d_mean = room(s.query_mean.shape());
    q.backward(s.query_mean, d_q, {.x = d_mean, .parameters = of(&MultiHeadAttention::q)}, options);
    if (d_query) {
      spread_mean(positions_last(ConstTensorView(d_mean), shapes.axis), s.mean_positions, positions_last(d_query, shapes.axis), executor);
    }
  }
  const auto own_positions = [&](const Tensor& d) { return d.view().slice(shapes.axis, 0, shapes.keys); };
  const auto unless_shared = [](ConstTensorView given) { return given ? Write::replace : Write::add; };
  k.backward(key, own_positions(d_k), {.x = d_key, .parameters = of(&MultiHeadAttention::k), .x_write = unless_shared(input.key)}, options);
  v.backward(value, own_positions(d_v), {.x = d_value, .parameters = of(&MultiHeadAttention::v), .x_write = unless_shared(input.value)}, options);
  if (config.gate == Gate::sigmoid) {
    gate.backward(input.query, d_gate, {.x = d_query, .parameters = of(&MultiHeadAttention::gate), .x_write = Write::add}, options);
  }
  if (config.add_bias_kv && grads) {
    const auto learned_gradient = [&](const Tensor& d, Tensor& learned) {
      sum_to(d.view().slice(shapes.axis, shapes.keys, shapes.keys + 1), learned.view().reshape({d.extent(-1)}));
    };
    learned_gradient(d_k, grads->bias_k);
    learned_gradient(d_v, grads->bias_v);
  }
}

}  // namespace polyhead::nn
