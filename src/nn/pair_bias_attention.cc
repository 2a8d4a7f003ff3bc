#include "polyhead/nn/pair_bias_attention.h"

#include "nn/attention_shapes.h"
#include "nn/check.h"
#include "nn/elementwise.h"
#include "nn/initialiser.h"
#include "polyhead/nn/activation.h"
#include "polyhead/sdpa.h"

namespace polyhead::nn {
namespace {

using PairInput = PairBiasAttention::Input;

void require_pair_layer(const char* operation, const PairBiasAttention& layer) {
  const auto given = [&](const char* name, const Linear& linear) { require(static_cast<bool>(linear.weight), operation, ": ", name, ".weight is missing"); };
  given("q", layer.q), given("k", layer.k), given("v", layer.v), given("output", layer.output), given("pair.projection", layer.pair.projection);
  const std::int64_t heads = layer.heads(), merged = layer.q.out_width();
  const DType dtype = layer.q.weight.dtype();
  require(heads >= 1 && merged % heads == 0, operation, ": q.weight is ", layer.q.weight.shape(), "; its rows must be a multiple of heads = ", heads);
  const Shape of_keys{merged, layer.k.in_width()};
  require_exactly(operation, {"k.weight", layer.k.weight}, of_keys, dtype);
  require_exactly(operation, {"v.weight", layer.v.weight}, of_keys, dtype);
  require_exactly(operation, {"output.weight", layer.output.weight}, {layer.q.in_width(), merged}, dtype);
  if (layer.gate.weight) require_exactly(operation, {"gate.weight", layer.gate.weight}, layer.q.weight.shape(), dtype);
  require_tensor(operation, {"pair.projection.weight", layer.pair.projection.weight}, dtype);
}

std::vector<Operand> pair_operands_of(const PairInput& input) {
  return {{"query", input.query}, {"key", input.key}, {"z", input.z}, {"pair_bias", input.pair_bias}, {"attend_keys", input.attend_keys}};
}

ConstTensorView pair_keys_of(const PairInput& input) { return input.key ? input.key : input.query; }

void require_pair_input(const char* operation, const PairBiasAttention& layer, const PairInput& input) {
  const DType dtype = layer.q.weight.dtype();
  require_rows(operation, {"query", input.query}, "width", layer.q.in_width(), dtype);
  require(input.query.rank() >= 2 && input.query.rank() + 1 <= kMaxRank, operation, ": query is ", input.query.shape(), "; it must be [*,T,width]");
  if (input.key || layer.k.in_width() != layer.q.in_width()) {
    require_rows(operation, {"key", input.key}, "key_width", layer.k.in_width(), dtype);
    const int lead = input.query.rank() - 2;
    require(input.key.rank() == input.query.rank() && input.key.shape().first(lead) == input.query.shape().first(lead), operation, ": key is ", input.key.shape(),
            "; with query ", input.query.shape(), " it must be [*,S,key_width] with the same leading dimensions");
  }
  require(static_cast<bool>(input.z) != static_cast<bool>(input.pair_bias), operation, ": ", input.z ? "z and pair_bias are both given" : "neither z nor pair_bias is given",
          "; exactly one of them must be");
}

ConstTensorView heads_of_merged(const PairBiasAttention& layer, ConstTensorView merged) { return split_heads(merged, merged.rank() - 2, layer.heads()); }
TensorView heads_of_merged(const PairBiasAttention& layer, TensorView merged) { return split_heads(merged, merged.rank() - 2, layer.heads()); }

PairBiasSdpa pair_sdpa_of(const PairBiasAttention& layer, const PairInput& input, ConstTensorView q, ConstTensorView k, ConstTensorView v) {
  return {.q = heads_of_merged(layer, q), .k = heads_of_merged(layer, k), .v = heads_of_merged(layer, v), .z = input.z, .attend_keys = input.attend_keys, .scale = layer.scale,
          .empty_rows = layer.empty_rows};
}

SdpaOptions options_with_bias(const PairBiasAttention& layer, const PairInput& input, const RunOptions& options) {
  SdpaOptions sdpa{.scale = layer.scale, .bias = input.pair_bias, .empty_rows = layer.empty_rows, .executor = options.executor, .workspace = options.workspace};
  sdpa.mask.attend_keys = input.attend_keys;
  return sdpa;
}

}  // namespace

PairBiasAttention::PairBiasAttention(const PairBiasAttentionConfig& config) : scale(config.scale), empty_rows(config.empty_rows) {
  require(config.width >= 1 && config.pair_width >= 1 && config.heads >= 1 && config.key_width >= 0 && config.head_width >= 0, "PairBiasAttention: width is ", config.width,
          ", pair_width ", config.pair_width, ", heads ", config.heads, ", key_width ", config.key_width, ", head_width ", config.head_width,
          "; the first three must be at least 1, the others not negative");
  require(config.head_width > 0 || config.width % config.heads == 0, "PairBiasAttention: width ", config.width, " is not a multiple of heads = ", config.heads,
          "; give head_width");
  Initialiser initialiser(config.seed);
  const std::int64_t merged = config.heads * (config.head_width > 0 ? config.head_width : config.width / config.heads);
  const std::int64_t key_width = config.key_width > 0 ? config.key_width : config.width;
  const auto linear = [&](std::int64_t in, std::int64_t out, bool bias) {
    return Linear({.in_width = in, .out_width = out, .bias = bias, .dtype = config.dtype, .seed = initialiser.child_seed()});
  };
  q = linear(config.width, merged, true);
  k = linear(key_width, merged, false);
  v = linear(key_width, merged, false);
  output = linear(merged, config.width, false);
  pair = PairBias({.pair_width = config.pair_width,
                   .heads = config.heads,
                   .epsilon = config.epsilon,
                   .bias = config.pair_projection_bias,
                   .dtype = config.dtype,
                   .seed = initialiser.child_seed()});
  if (config.gate) gate = linear(config.width, merged, false);
}

void PairBiasAttention::forward(const Input& input, TensorView out, const RunOptions& options, Saved* saved) const {
  constexpr const char* kOperation = "PairBiasAttention.forward";
  require_pair_layer(kOperation, *this);
  require_pair_input(kOperation, *this, input);
  const DType dtype = q.weight.dtype();
  require_exactly(kOperation, {"out", out}, input.query.shape(), dtype);
  const Operand written{"out", out};
  polyhead::require_no_overlap(kOperation, {&written, 1}, pair_operands_of(input));
  require_parameters_separate(kOperation, {written}, *this);
  if (saved) *saved = {};  // frees the memory of *saved first, so that the workspace can reuse it
  const Shape merged = with_width(input.query.shape(), q.out_width()), merged_keys = with_width(pair_keys_of(input).shape(), k.out_width());
  const auto allocate = [&](const Shape& shape) { return uninitialised(dtype, shape, options.workspace); };
  Saved s{.input = input, .q = allocate(merged), .k = allocate(merged_keys), .v = allocate(merged_keys), .attended = allocate(merged), .lse = {}, .gate = {},
          .constant_parameters = caches_parameters(options.workspace)};
  q.forward(input.query, s.q, options);
  k.forward(pair_keys_of(input), s.k, options);
  v.forward(pair_keys_of(input), s.v, options);
  const PairBiasSdpa sdpa = pair_sdpa_of(*this, input, s.q, s.k, s.v);
  s.lse = uninitialised(accumulation_dtype(dtype), sdpa.q.shape().first(sdpa.q.rank() - 1), options.workspace);
  const TensorView heads_out = heads_of_merged(*this, s.attended.view());
  if (input.z) {
    pair_bias_sdpa_forward(pair, sdpa, heads_out, s.lse, options);
  } else {
    sdpa_forward({.q = sdpa.q, .k = sdpa.k, .v = sdpa.v, .out = heads_out, .lse = s.lse}, options_with_bias(*this, input, options));
  }
  Tensor gated;
  if (gate.weight) {
    s.gate = allocate(merged);
    gate.forward(input.query, s.gate, options);
    activate(Activation::sigmoid, s.gate, s.gate, options.executor);
    if (saved) gated = allocate(merged);
    multiply(s.attended, s.gate, gated ? gated : s.attended, options.executor);
  }
  output.forward(gated ? gated : s.attended, out, options);
  if (saved) *saved = std::move(s);
}

void PairBiasAttention::backward(const Saved& s, ConstTensorView d_out, const Gradients& gradients, const RunOptions& options) const {
  constexpr const char* kOperation = "PairBiasAttention.backward";
  Executor* const executor = options.executor;
  require(static_cast<bool>(s.lse), kOperation, ": saved is empty; give it to forward first");
  require_pair_layer(kOperation, *this);
  const Input& input = s.input;
  require_pair_input(kOperation, *this, input);
  const DType dtype = q.weight.dtype();
  const Shape merged = with_width(input.query.shape(), q.out_width()), merged_keys = with_width(pair_keys_of(input).shape(), k.out_width());
  require_exactly(kOperation, {"saved.q", s.q}, merged, dtype);
  require_exactly(kOperation, {"saved.k", s.k}, merged_keys, dtype);
  require(s.lse.extent(-2) == heads(), kOperation, ": saved comes from a layer with heads ", s.lse.extent(-2), "; this one has ", heads());
  require(static_cast<bool>(s.gate) == static_cast<bool>(gate.weight), kOperation, ": saved comes from a layer ", s.gate ? "with" : "without", " a gate");
  require_exactly(kOperation, {"d_out", d_out}, input.query.shape(), dtype);
  const Operand written[] = {{"the gradient of query", gradients.query}, {"the gradient of key", gradients.key}, {"the gradient of z", gradients.z},
                             {"the gradient of pair_bias", gradients.pair_bias, true}};
  const ConstTensorView gradient_of[] = {input.query, input.key, input.z, input.pair_bias};
  for (std::size_t i = 0; i < std::size(written); ++i) {
    if (!written[i].view) continue;
    require(static_cast<bool>(gradient_of[i]), kOperation, ": ", written[i].name, " is requested, but forward() was called without this input");
    require_exactly(kOperation, written[i], gradient_of[i].shape(), dtype);
  }
  std::vector<Operand> read = pair_operands_of(input);
  read.push_back({"d_out", d_out});
  polyhead::require_no_overlap(kOperation, written, read);
  require_parameters_separate(kOperation, {written[0], written[1], written[2], written[3]}, *this);
  PairBiasAttention* const grads = gradients.parameters;
  if (grads) {
    require_parameters_may_change(kOperation, s.constant_parameters, options.workspace);
    require_gradients(kOperation, *this, *grads, read, written);
  }
  const Write write = gradients.parameters_write;
  const auto into = [&](Linear PairBiasAttention::*projection, TensorView d_x, Write x_write) {
    return nn::Gradients<Linear>{.x = d_x, .parameters = grads ? &(grads->*projection) : nullptr, .x_write = x_write, .parameters_write = write};
  };
  const auto allocate = [&](const Shape& shape) { return uninitialised(dtype, shape, options.workspace); };

  // the backward pass of out = output(attended * gate)
  Tensor d_attended = allocate(merged), d_gate;
  if (gate.weight) {
    d_gate = allocate(merged);
    multiply(s.attended, s.gate, d_gate, executor);
  }
  output.backward(gate.weight ? d_gate : s.attended, d_out, into(&PairBiasAttention::output, d_attended, Write::replace), options);
  if (gate.weight) gate_backward(s.gate, s.attended, d_attended, d_gate, executor);

  // the backward pass of attended = sdpa(q, k, v, bias)
  const TensorView d_query = gradients.query, d_keys = input.key ? gradients.key : d_query;
  Tensor d_q, d_k, d_v;
  if (d_query || grads) d_q = allocate(merged);
  if (d_keys || grads) d_k = allocate(merged_keys), d_v = allocate(merged_keys);
  const auto heads_or_absent = [&](Tensor& d) { return d ? heads_of_merged(*this, d.view()) : TensorView(); };
  const PairBiasSdpa sdpa = pair_sdpa_of(*this, input, s.q, s.k, s.v);
  const ConstTensorView heads_out = heads_of_merged(*this, ConstTensorView(s.attended)), d_heads_out = heads_of_merged(*this, ConstTensorView(d_attended));
  if (input.z) {
    pair_bias_sdpa_backward(pair, sdpa, heads_out, s.lse, d_heads_out,
                            {.q = heads_or_absent(d_q), .k = heads_or_absent(d_k), .v = heads_or_absent(d_v), .z = gradients.z, .parameters = grads ? &grads->pair : nullptr,
                             .parameters_write = write},
                            options);
  } else {
    sdpa_backward({.q = sdpa.q, .k = sdpa.k, .v = sdpa.v, .out = heads_out, .lse = s.lse, .d_out = d_heads_out, .d_q = heads_or_absent(d_q), .d_k = heads_or_absent(d_k),
                   .d_v = heads_or_absent(d_v), .d_bias = gradients.pair_bias},
                  options_with_bias(*this, input, options));
    if (grads && write == Write::replace) grads->pair.visit([](const std::string&, Tensor& tensor) { fill(tensor, 0); });
  }

  // the backward pass of q = q(query), k = k(keys), v = v(keys), gate = sigmoid(gate(query))
  if (d_q) q.backward(input.query, d_q, into(&PairBiasAttention::q, d_query, Write::replace), options);
  const auto keys_backward = [&](Linear PairBiasAttention::*projection, const Tensor& d, Write x_write) {
    const Tensor reached = grads && input.attend_keys ? without_unreached_rows(pair_keys_of(input), d, executor, options.workspace) : Tensor();
    (this->*projection).backward(reached ? ConstTensorView(reached) : pair_keys_of(input), d, into(projection, d_keys, x_write), options);
  };
  if (d_k) {
    keys_backward(&PairBiasAttention::k, d_k, input.key ? Write::replace : Write::add);
    keys_backward(&PairBiasAttention::v, d_v, Write::add);
  }
  if (gate.weight && (d_query || grads)) gate.backward(input.query, d_gate, into(&PairBiasAttention::gate, d_query, Write::add), options);
}

}  // namespace polyhead::nn
