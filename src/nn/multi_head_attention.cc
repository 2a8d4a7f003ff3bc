#include "polyhead/nn/multi_head_attention.h"

#include <optional>
#include <vector>

#include "core/parallel.h"
#include "nn/attention_pass.h"
#include "nn/attention_shapes.h"
#include "nn/cached_attention.h"
#include "nn/check.h"
#include "nn/chunked_forward.h"
#include "nn/elementwise.h"
#include "polyhead/nn/activation.h"
#include "sdpa/dense_mask.h"

namespace polyhead::nn {
namespace {

constexpr const char* kForward = "MultiHeadAttention.forward";

// Returns all tensors that a call reads, except the parameters. The structured binding names every option, so that a new option must be added here. new_tokens
// is only read with a cache; forward() then appends it to the list.
std::vector<Operand> inputs_of(const AttentionInput& input, const AttentionOptions& options) {
  const auto& [named, mask, mask_like_input, bias, relative_bias, sink, score_rule, mode, dropout_seed, dropout_keep, rotary, cache, new_tokens, attend_later_tokens, backend, executor, workspace] = options;
  return nn::inputs_of(input, options, dropout_keep, rotary);
}

// Returns bool [*,L], true for the positions over which GlobalQuery::masked_mean averages; absent for GlobalQuery::mean.
Tensor mean_positions(const MultiHeadAttentionConfig& c, const AttentionShapes& shapes, const Mask& mask) {
  if (c.global_query != GlobalQuery::masked_mean) return {};
  const Mask keys{.key_starts = mask.key_starts, .key_lengths = mask.key_lengths, .attend_keys = mask.attend_keys, .block_keys = mask.block_keys};
  const Tensor mask_of_keys = dense_mask(kForward, keys, shapes.lead, 1, 1, shapes.keys);
  return Tensor::copy_of(mask_of_keys.view().reshape(appended(shapes.lead, {shapes.positions})));
}

// Calls take(name, tensor, dtype, shape) for every tensor that run() computes. Then sets the views of the heads in these tensors.
template <class Take>
void lay_out(const MultiHeadAttentionConfig& c, const AttentionInput& input, const AttentionShapes& shapes, MultiHeadAttention::Activations& s,
             const Take& take) {
  const auto activation = [&](const char* name, Tensor& tensor, const Shape& outer, std::int64_t positions, std::int64_t width) {
    take(name, tensor, c.dtype, with_extents(outer, shapes.axis, positions, width));
  };
  // If the layer adds no keys, keys and values that the caller has projected are used in place.
  const auto keys = [&](const char* name, Tensor& tensor, ConstTensorView given, std::int64_t width) -> ConstTensorView {
    if (given && shapes.added_keys == 0) return given;
    activation(name, tensor, shapes.key, shapes.keys + shapes.added_keys, width);
    return split_heads(ConstTensorView(tensor), shapes.axis, c.kv_heads);
  };
  if (c.global_query != GlobalQuery::off) activation("query_mean", s.query_mean, shapes.query, 1, c.query_width);
  activation("q", s.q, shapes.query, shapes.queries, c.heads * c.head_width);
  if (c.qk_norm) activation("unnormed_q", s.unnormed_q, shapes.query, shapes.queries, c.heads * c.head_width);
  if (c.qk_norm && !input.projected_key) activation("unnormed_k", s.unnormed_k, shapes.key, shapes.keys, c.kv_heads * c.head_width);
  s.q_heads = split_heads(ConstTensorView(s.q), shapes.axis, c.heads);
  s.k_heads = keys("k", s.k, input.projected_key, c.kv_heads * c.head_width);
  s.v_heads = keys("v", s.v, input.projected_value, c.kv_heads * c.value_head_width);
  activation("attended", s.attended, shapes.query, shapes.queries, c.heads * c.value_head_width);
  s.attended_heads = split_heads(ConstTensorView(s.attended), shapes.axis, c.heads);
  take("lse", s.lse, accumulation_dtype(c.dtype), s.q_heads.shape().first(s.q_heads.rank() - 1));
  if (c.gate == Gate::sigmoid) activation("gate", s.gate, shapes.query, shapes.positions, c.heads * c.value_head_width);
}

// Sets the options for the call of sdpa_forward().
void set_sdpa(const MultiHeadAttention& layer, const AttentionOptions& options, const AttentionShapes& shapes, MultiHeadAttention::Activations& s) {
  const MultiHeadAttentionConfig& c = layer.config;
  s.sdpa = {.scale = c.scale, .softcap = c.softcap, .score_rule = options.score_rule, .empty_rows = c.empty_rows, .precision = c.precision, .backend = options.backend};
  copy_shared_arguments(options, s.sdpa);
  if (c.sink) s.sdpa.sink = layer.sink;
  if (options.cache) s.sdpa.mask = mask_in_cache(options, options.cache->key_lengths(), options.cache->previous_lengths());
  if (options.mode == Mode::training) s.sdpa.dropout = {.p = c.dropout, .seed = options.dropout_seed.value_or(0), .keep = options.dropout_keep};
  if (shapes.added_keys == 0) return;
  if (restricts(options.mask)) {
    s.padded_mask = padded_mask(kForward, options.mask, shapes);
    s.sdpa.mask = {.attend = s.padded_mask};
  }
  if (options.bias) {
    s.padded_bias = padded_bias(s.sdpa.bias, shapes);
    s.sdpa.bias = s.padded_bias;
  }
}

// The norm of a layer's q or k, and the tensor that keeps the norm's input for the backward pass.
struct HeadNorm {
  const RMSNorm& norm;  // without a weight if the layer does not normalise q and k
  Tensor& unnormed;
};

// Projects x. If the layer has a norm of q and k, then normalises each head.
void project(const PackedLinear& projection, ConstTensorView x, std::int64_t heads, int axis, const HeadNorm& own, TensorView y, Executor* executor) {
  if (!own.norm.weight) return projection.forward(x, y, executor);
  projection.forward(x, own.unnormed, executor);
  own.norm.forward(split_heads(own.unnormed.view(), axis, heads), split_heads(y, axis, heads), {.executor = executor});
}

// Writes the projected keys or values: those of the S positions, then `learned` (bias_k or bias_v), then zeros.
void project_keys(const PackedLinear& projection, ConstTensorView x, ConstTensorView given, const Tensor& learned, std::int64_t heads,
                  const AttentionShapes& shapes, const HeadNorm& norm, Executor* executor, Tensor& projected) {
  if (given && shapes.added_keys == 0) return;
  if (given) {
    copy(given, split_heads(projected.view(), shapes.axis, heads).slice(-2, 0, shapes.keys));
  } else {
    project(projection, x, heads, shapes.axis, norm, projected.view().slice(shapes.axis, 0, shapes.keys), executor);
  }
  if (shapes.added_keys == 0) return;
  const TensorView added = projected.view().slice(shapes.axis, shapes.keys, shapes.keys + shapes.added_keys);
  fill(added, 0);
  if (learned) {
    const TensorView slot = added.slice(shapes.axis, 0, 1);
    copy(learned.view().reshape({projection.out_width()}).expand(slot.shape()), slot);
  }
}

void require_rotary(const char* operation, const MultiHeadAttentionConfig& config, const AttentionInput& input, const Rotary& rotary,
                    const AttentionShapes& shapes) {
  require(rotary.cos || !(rotary.sin || rotary.key_cos || rotary.key_sin), operation, ": rotary has tables but no cos");
  if (!rotary.cos) {
    require(rotary.width == 0 && rotary.order == RotaryOrder::halves, operation, ": rotary has a width or an order but no tables; nothing would be rotated");
    return;
  }
  require(config.global_query == GlobalQuery::off, operation, ": rotary positions cannot be combined with a global query, which has no position");
  const std::int64_t width = rotary.width == 0 ? config.head_width : rotary.width;
  require(width > 0 && width <= config.head_width && width % 2 == 0, operation, ": rotary rotates ", width,
          " features of each head; it must be an even number of at most head_width ", config.head_width);
  const auto require_table = [&](const char* name, ConstTensorView table, std::int64_t positions) {
    require(static_cast<bool>(table), operation, ": ", name, " is missing");
    const Shape all = appended(shapes.lead, {positions, width / 2});
    // The last two extents of a table may not broadcast. With an extent of 1, all positions or all pairs of features would be rotated by the same angle.
    require(is_floating(table.dtype()) && table.rank() >= 2 && table.extent(-1) == width / 2 && table.extent(-2) == positions &&
                broadcasts(table.shape(), all),
            operation, ": ", name, " is ", table.dtype(), " ", table.shape(), "; it must be floating, broadcast to ", all, " and end in ",
            all.last(2), ": positions and half of the rotated width ", width);
  };
  require_table("rotary.cos", rotary.cos, shapes.queries);
  require_table("rotary.sin", rotary.sin, shapes.queries);
  require(rotary.sin.shape() == rotary.cos.shape(), operation, ": rotary.sin is ", rotary.sin.shape(), "; it must be as rotary.cos: ",
          rotary.cos.shape());
  require(rotary.key_sin.shape() == rotary.key_cos.shape(), operation, ": rotary.key_sin is ", rotary.key_sin.shape(),
          "; it must be as rotary.key_cos: ", rotary.key_cos.shape());
  if (input.projected_key) {
    require(!rotary.key_cos, operation, ": rotary.key_cos is given with a projected key, which is not rotated");
    return;
  }
  if (!rotary.key_cos) {
    require(shapes.queries == shapes.keys, operation, ": rotary has no key_cos and key_sin, and there are ", shapes.queries,
            " queries but ", shapes.keys, " keys");
    return;
  }
  require_table("rotary.key_cos", rotary.key_cos, shapes.keys);
  require_table("rotary.key_sin", rotary.key_sin, shapes.keys);
}

// Checks that the layer has the members that its configuration names, and no others. Members are public, so a sink, for example, may have been set after
// construction; without this check it would be ignored.
void require_members(const char* operation, const MultiHeadAttention& layer) {
  const MultiHeadAttentionConfig& c = layer.config;
  const auto member = [&](const char* name, const Tensor& tensor, const char* setting, bool wanted, const char* on = "true", const char* off = "false") {
    if (static_cast<bool>(tensor) == wanted) return;
    if (wanted) fail(ErrorCode::invalid_argument, operation, ": config.", setting, " is ", on, ", but the layer has no ", name);
    fail(ErrorCode::invalid_argument, operation, ": the layer has a", name == std::string_view("output") ? "n " : " ", name, ", but config.", setting, " is ", off);
  };
  member("output", layer.output.weight, "output", c.output == OutputProjection::linear, "linear", "none");
  member("gate", layer.gate.weight, "gate", c.gate == Gate::sigmoid, "sigmoid", "none");
  member("bias_k", layer.bias_k, "add_bias_kv", c.add_bias_kv);
  member("bias_v", layer.bias_v, "add_bias_kv", c.add_bias_kv);
  member("sink", layer.sink, "sink", c.sink);
  member("q_norm", layer.q_norm.weight, "qk_norm", c.qk_norm);
  member("k_norm", layer.k_norm.weight, "qk_norm", c.qk_norm);
}

void require_heads_fit_rank(const char* operation, const AttentionInput& input) {
  require(input.query.rank() + 2 <= kMaxRank, operation, ": query has ", input.query.rank(), " dimensions; at most ", kMaxRank - 2,
          " are allowed");
}

void require_options(const char* operation, const MultiHeadAttentionConfig& config, const AttentionInput& input,
                     const AttentionOptions& options, const AttentionShapes& shapes) {
  require_rotary(operation, config, input, options.rotary, shapes);
  const bool documents = options.mask.query_offsets || options.mask.key_offsets;
  require(!documents || shapes.added_keys == 0, operation,
          ": documents (query_offsets) cannot be combined with add_bias_kv or add_zero_attn, whose keys belong to no document");
  require(!documents || config.global_query == GlobalQuery::off, operation,
          ": documents (query_offsets) cannot be combined with a global query, which spans all documents");
  require(!options.relative_bias || shapes.added_keys == 0, operation,
          ": relative_bias cannot be combined with add_bias_kv or add_zero_attn, whose keys have no position");
  require(!options.relative_bias || config.global_query == GlobalQuery::off, operation,
          ": relative_bias cannot be combined with a global query, which has no position");
  require(!options.score_rule || options.cache == nullptr, operation, ": score_rule cannot be combined with a cache, whose tokens have other positions than the rows of query");
  require(!options.score_rule || config.global_query == GlobalQuery::off, operation, ": score_rule cannot be combined with a global query, which has no position");
  require(!options.sink || !config.sink, operation, ": sink is given to a layer that learns its own (config.sink)");
  require_cache(operation, config, input, options, shapes);
  if (!options.cache) {
    require_pairs(operation, "attend", options.mask.attend, shapes);
    require_pairs(operation, "block", options.mask.block, shapes);
    require_pairs(operation, "bias", options.bias, shapes);
  }
  require(options.mode == Mode::training || !options.dropout_keep, operation, ": dropout_keep is given in evaluation, where nothing is dropped");
  require(config.dropout > 0 || !options.dropout_keep, operation, ": dropout_keep is given to a layer whose dropout is 0: nothing is dropped");
  if (options.mode == Mode::evaluation) return;
  require_pairs(operation, "dropout_keep", options.dropout_keep, shapes, shapes.added_keys);
  require(config.dropout == 0 || options.dropout_seed || options.dropout_keep, operation,
          ": dropout in training needs dropout_seed, a new one for each step, or dropout_keep");
  require(!caches_parameters(options.workspace), operation,
          ": a workspace of Parameters::constant cannot be used in training, because it keeps copies of the parameters of the first call; use "
          "Parameters::may_change");
}

PackedAttention packed_projections(const MultiHeadAttention& layer, PackFor use, const AttentionOptions& options) {
  const auto packed = [&](const Linear& linear) { return PackedLinear(linear, use, {options.executor, options.workspace}); };
  PackedAttention projections{.q = packed(layer.q), .k = packed(layer.k), .v = packed(layer.v), .output = {}, .gate = {}};
  if (layer.config.output == OutputProjection::linear) projections.output = packed(layer.output);
  if (layer.config.gate == Gate::sigmoid) projections.gate = packed(layer.gate);
  return projections;
}

// The forward pass of an attention layer (docs/maths.md, eq. 11-15):
//   x -> q, k, v -> norm -> heads -> sdpa -> merge -> gate -> output projection
// `executor` is used instead of the options' executor. keep_activations: the backward pass will read `s`, so the gate may not overwrite s.attended. If `s`
// holds tensors of an earlier pass, their memory is reused.
void run(const MultiHeadAttention& layer, const PackedAttention& projections, const AttentionInput& input, const AttentionShapes& shapes,
         TensorView out, const AttentionOptions& options, Executor* executor, bool keep_activations, MultiHeadAttention::Activations& s,
         TensorView attention_weights = {}) {
  const MultiHeadAttentionConfig& config = layer.config;
  const ConstTensorView key = input.key ? input.key : input.query, value = input.value ? input.value : key;
  lay_out(config, input, shapes, s, [&](const char*, Tensor& tensor, DType dtype, const Shape& shape) {
    reuse_or_allocate(tensor, dtype, shape, options.workspace);
  });
  ConstTensorView query = input.query;
  if (config.global_query != GlobalQuery::off) {
    s.mean_positions = mean_positions(config, shapes, options.mask);
    reduce_positions(positions_last(query, shapes.axis), s.mean_positions, Reduce::mean, positions_last(s.query_mean.view(), shapes.axis),
                     executor);
    query = s.query_mean;
  }
  const RMSNorm no_norm;
  project(projections.q, query, config.heads, shapes.axis, {layer.q_norm, s.unnormed_q}, s.q, executor);
  project_keys(projections.k, key, input.projected_key, layer.bias_k, config.kv_heads, shapes, {layer.k_norm, s.unnormed_k}, executor, s.k);
  project_keys(projections.v, value, input.projected_value, layer.bias_v, config.kv_heads, shapes, {no_norm, s.v}, executor, s.v);
  const TensorView q_heads = split_heads(s.q.view(), shapes.axis, config.heads);
  const TensorView k_heads = input.projected_key ? TensorView() : split_heads(s.k.view(), shapes.axis, config.kv_heads);
  apply_rotary(options.rotary, Rotation::forward, shapes, q_heads, k_heads, executor);
  LengthsRollback before(options.cache);
  if (options.cache) {
    options.cache->append(s.k_heads, s.v_heads, options.new_tokens, executor);
    s.k_heads = options.cache->keys(), s.v_heads = options.cache->values();
  }

  set_sdpa(layer, options, shapes, s);
  SdpaOptions sdpa = s.sdpa;
  sdpa.executor = executor;  // not stored in `s`, because the executor may no longer exist when `s` is read
  sdpa.workspace = options.workspace;
  sdpa_forward({.q = s.q_heads,
                .k = s.k_heads,
                .v = s.v_heads,
                .out = split_heads(s.attended.view(), shapes.axis, config.heads),
                .lse = s.lse,
                .attention_weights = attention_weights,
                .k_scale = options.cache ? options.cache->key_scales() : input.projected_key_scale,
                .v_scale = options.cache ? options.cache->value_scales() : input.projected_value_scale},
               sdpa);

  Tensor gated;
  if (config.gate == Gate::sigmoid) {
    projections.gate.forward(input.query, s.gate, executor);
    activate(Activation::sigmoid, s.gate, s.gate, executor);
    // Evaluation does not read the ungated heads again, so the gate is applied in place.
    const bool in_place = !keep_activations && s.attended.shape() == s.gate.shape();
    if (!in_place) gated = uninitialised(config.dtype, s.gate.shape(), options.workspace);
    multiply(s.attended, s.gate, in_place ? s.attended : gated, executor);
  }
  const ConstTensorView projection_input = gated ? ConstTensorView(gated) : ConstTensorView(s.attended);
  if (config.output == OutputProjection::linear) {
    projections.output.forward(projection_input, out, executor);
  } else {
    copy(projection_input, out);
  }
  before.commit();
}

}  // namespace

Shape MultiHeadAttention::output_shape(const AttentionInput& input) const {
  return output_shape_of(config, attention_shapes("MultiHeadAttention", config, input));
}

Shape MultiHeadAttention::maps_shape(const AttentionInput& input) const {
  const AttentionShapes shapes = attention_shapes("MultiHeadAttention", config, input);
  return appended(shapes.lead, {shapes.heads, shapes.queries, shapes.keys + shapes.added_keys});
}

ChunkedAttention::ChunkedAttention(const MultiHeadAttention& layer, const AttentionInput& input, const AttentionOptions& options)
    : ChunkedAttention(layer, input, attention_shapes(kForward, layer.config, input), options) {}

ChunkedAttention::ChunkedAttention(const MultiHeadAttention& layer, const AttentionInput& input, const AttentionShapes& shapes,
                                   const AttentionOptions& options)
    : layer_(layer), input_(input), shapes_(shapes), options_(with_keys_last(kForward, shapes_, options, own_options_)), chunks_(layer.config, shapes_, options_) {
  require_heads_fit_rank(kForward, input);
  require_options(kForward, layer.config, input, options_, shapes_);
  if (is_chunked()) require_sdpa_options(layer.config, shapes_, options_);
  projections_ = packed_projections(layer, is_chunked() ? PackFor::several_products : PackFor::one_product, options_);
}

void ChunkedAttention::run(std::int64_t chunk, TensorView out, MultiHeadAttention::Activations& scratch, Executor* executor) const {
  if (!is_chunked()) return nn::run(layer_, projections_, input_, shapes_, out, options_, executor, false, scratch);
  const AttentionInput some = chunks_.of(input_, chunk);
  const AttentionShapes shapes = attention_shapes(kForward, layer_.config, some);
  nn::run(layer_, projections_, some, shapes, out, chunks_.of(options_, chunk), executor, false, scratch);
}

void MultiHeadAttention::forward(const AttentionInput& input, TensorView out, const AttentionOptions& given, Saved* saved,
                                 TensorView attention_weights) const {
  constexpr const char* kOperation = kForward;
  const AttentionShapes shapes = attention_shapes(kOperation, config, input);
  require_members(kOperation, *this);
  std::optional<AttentionOptions> own;
  const AttentionOptions& options = with_keys_last(kOperation, shapes, given, own);
  require_heads_fit_rank(kOperation, input);
  require_exactly(kOperation, {"out", out}, output_shape_of(config, shapes), config.dtype);
  const Operand written{"out", out};
  const Operand results[] = {written, {"attention_weights", attention_weights}};
  polyhead::require_no_overlap(kOperation, results, inputs_of(input, options));
  require_parameters_separate(kOperation, {results[0], results[1]}, *this);
  if (attention_weights) {
    require(saved != nullptr, kOperation, ": attention_weights can only be computed together with saved activations");
    require_exactly(kOperation, {"attention_weights", attention_weights}, maps_shape(input), config.dtype);
  }
  if (options.cache) {
    require(saved == nullptr, kOperation, ": a cache cannot be combined with saved activations; a pass with a cache has no backward pass");
    std::vector<Operand> inputs = inputs_of(input, options);
    if (options.new_tokens) inputs.push_back({"new_tokens", options.new_tokens});
    const KeyValueCache& cache = *options.cache;
    const Operand memory[] = {written,
                              {"the cache's keys", cache.all_keys()},
                              {"the cache's values", cache.all_values()},
                              {"the cache's key scales", cache.all_key_scales()},
                              {"the cache's value scales", cache.all_value_scales()}};
    polyhead::require_no_overlap(kOperation, memory, inputs);
  }
  if (saved == nullptr) {
    const ChunkedAttention evaluation(*this, input, shapes, options);
    return evaluation.for_each_chunk([&](Executor* executor) {
      return [&, executor](std::int64_t chunk, MultiHeadAttention::Activations& scratch) {
        evaluation.run(chunk, evaluation.of(out, chunk), scratch, executor);
      };
    });
  }
  require_options(kOperation, config, input, options, shapes);
  Saved whole;  // becomes *saved at the end, so that *saved is empty if an exception is thrown
  *saved = {};
  whole.input = input;
  whole.bias = options.bias;
  whole.rotary = options.rotary;
  whole.config = config;
  whole.constant_parameters = caches_parameters(options.workspace);
  run(*this, packed_projections(*this, PackFor::one_product, options), input, shapes, out, options, options.executor, true, whole, attention_weights);
  *saved = std::move(whole);
}

void MultiHeadAttention::restore(const AttentionInput& input, const AttentionOptions& given, Saved& saved) const {
  constexpr const char* kOperation = "MultiHeadAttention.restore";
  const AttentionShapes shapes = attention_shapes(kOperation, config, input);
  std::optional<AttentionOptions> own;
  const AttentionOptions& options = with_keys_last(kOperation, shapes, given, own);
  require_heads_fit_rank(kOperation, input);
  require_options(kOperation, config, input, options, shapes);
  require(options.cache == nullptr, kOperation, ": a pass with a cache has no backward pass");
  lay_out(config, input, shapes, saved, [&](const char* name, const Tensor& tensor, DType dtype, const Shape& shape) {
    require_exactly(kOperation, {{"saved.", name}, tensor}, shape, dtype);
  });
  saved.mean_positions = mean_positions(config, shapes, options.mask);
  set_sdpa(*this, options, shapes, saved);
  saved.input = input;
  saved.bias = options.bias;
  saved.rotary = options.rotary;
  saved.config = config;
  saved.constant_parameters = false;
}

}  // namespace polyhead::nn
