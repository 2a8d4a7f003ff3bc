#include "polyhead/nn/trace.h"

#include <cmath>

#include "core/text.h"
#include "nn/attention_shapes.h"
#include "nn/elementwise.h"
#include "sdpa/dense_mask.h"

namespace polyhead::nn {
namespace {

class Tracer {
 public:
  Tracer(const MultiHeadAttention& layer, const AttentionInput& input, const AttentionOptions& options)
      : layer_(layer),
        config_(layer.config),
        input_(input),
        options_(options),
        shapes_(attention_shapes("trace", layer.config, input)),
        out_(layer.config.dtype, layer.output_shape(input)) {
    require(!input.projected_key_scale, "trace: projected_key is int8; the steps show floating-point numbers, so dequantize projected_key and projected_value first");
    require(!options.score_rule, "trace: score_rule is given; the steps show the built-in rules only");
    layer.forward(input, out_, options, &saved_);
    queries_ = config_.global_query == GlobalQuery::off ? "T" : "1";
    keys_ = shapes_.added_keys == 0 ? "S" : cat("S+", shapes_.added_keys);
    key_heads_ = config_.kv_heads == config_.heads ? "N" : config_.kv_heads == 1 ? "1" : "K";
  }

  std::vector<TraceStep> run() {
    inputs();
    projections();
    pairs();
    outputs();
    return std::move(steps_);
  }

 private:
  void add(TraceKind kind, std::string letters, ConstTensorView value) {
    steps_.push_back({kind, std::move(letters), Tensor::copy_of(value)});
  }

  // Returns the names of a shape's extents, with `positions` before leading dimension `at`. "[B1,T,B2,E]" has the positions "T" at the axis of attention;
  // "[B,N,T,H]" has the positions "N,T" after all leading dimensions.
  std::string letters(int at, const std::string& positions, const std::string& width) const {
    const int lead = shapes_.lead.size();
    std::string text;
    for (int i = 0; i <= lead; ++i) {
      if (i == at) append(text, positions + ",");
      if (i < lead) append(text, lead == 1 ? std::string("B,") : cat("B", i + 1, ","));
    }
    return cat("[", text, width, "]");
  }
  std::string input_letters(const std::string& positions, const std::string& width) const {
    return letters(shapes_.axis, positions, width);
  }
  std::string head_letters(const std::string& count, const std::string& rows, const std::string& columns) const {
    return letters(shapes_.lead.size(), cat(count, ",", rows), columns);
  }
  std::string key_width(const char* width) const { return key_heads_ == "1" ? width : cat(key_heads_, "*", width); }

  void inputs() {
    add(TraceKind::query, input_letters("T", input_.key ? "Eq" : "E"), input_.query);
    if (input_.key) add(TraceKind::key, input_letters("S", "Ek"), input_.key);
    if (input_.value) add(TraceKind::value, input_letters("S", "Ev"), input_.value);
    if (input_.projected_key) {
      add(TraceKind::key, head_letters(key_heads_, "S", "H"), input_.projected_key);
      add(TraceKind::value, head_letters(key_heads_, "S", "V"), input_.projected_value);
    }
    if (config_.global_query != GlobalQuery::off) add(TraceKind::mean_query, input_letters("1", "Eq"), saved_.query_mean);
  }

  void projections() {
    const ConstTensorView key = input_.key ? input_.key : input_.query, value = input_.value ? input_.value : key;
    const auto own = [&](const Tensor& x) { return x.view().slice(shapes_.axis, 0, shapes_.keys); };
    // The steps after a projection: q and k may be normalised and rotated head by head. v has no such steps.
    struct Later {
      const RMSNorm& norm;
      std::int64_t heads;
      TraceKind normed, rotated;
    };
    const auto project = [&](TraceKind kind, const std::string& text, const Linear& linear, ConstTensorView x, ConstTensorView saved,
                             const Later* later) {
      const bool norms = later != nullptr && config_.qk_norm, rotates = later != nullptr && options_.rotary.cos;
      if (!norms && !rotates) return add(kind, text, saved);
      Tensor projected(config_.dtype, saved.shape());  // `saved` holds the result of the last step, so the projection itself is computed again
      linear.forward(x, projected, {.executor = options_.executor});
      add(kind, text, projected);
      if (norms) {
        Tensor normed(config_.dtype, saved.shape());
        later->norm.forward(split_heads(ConstTensorView(projected), shapes_.axis, later->heads), split_heads(normed.view(), shapes_.axis, later->heads),
                            {.executor = options_.executor});
        normed_.push_back({later->normed, text, std::move(normed)});
      }
      if (rotates) rotated_.push_back({later->rotated, text, Tensor::copy_of(saved)});
    };
    const Later of_q{layer_.q_norm, config_.heads, TraceKind::norm_q, TraceKind::rotary_q};
    const Later of_k{layer_.k_norm, config_.kv_heads, TraceKind::norm_k, TraceKind::rotary_k};
    const ConstTensorView query = saved_.query_mean ? ConstTensorView(saved_.query_mean) : input_.query;
    project(TraceKind::projection_q, input_letters(queries_, "N*H"), layer_.q, query, saved_.q, &of_q);
    if (!input_.projected_key) {
      project(TraceKind::projection_k, input_letters("S", key_width("H")), layer_.k, key, own(saved_.k), &of_k);
      project(TraceKind::projection_v, input_letters("S", key_width("V")), layer_.v, value, own(saved_.v), nullptr);
    }
    for (std::vector<TraceStep>* later : {&normed_, &rotated_})
      for (TraceStep& step : *later) steps_.push_back(std::move(step));
    if (shapes_.added_keys > 0) {
      add(TraceKind::added_key, input_letters(keys_, key_width("H")), saved_.k);
      add(TraceKind::added_value, input_letters(keys_, key_width("V")), saved_.v);
    }
    add(TraceKind::split_q, head_letters("N", queries_, "H"), saved_.q_heads);
    add(TraceKind::split_k, head_letters(key_heads_, keys_, "H"), saved_.k_heads);
    add(TraceKind::split_v, head_letters(key_heads_, keys_, "V"), saved_.v_heads);
  }

  // Adds the steps whose values are [*,N,T,S]: the intermediate values of attention, in the order of the formula in sdpa.h.
  void pairs() {
    const auto stage = [&](TraceKind kind, SdpaOptions options, MapValue value) {
      options.executor = options_.executor;
      Tensor result(accumulation_dtype(config_.dtype), layer_.maps_shape(input_));
      attention_map(saved_.maps(), result, options, value);
      steps_.push_back({kind, head_letters("N", queries_, keys_), std::move(result)});
    };
    SdpaOptions plain = saved_.sdpa;
    plain.mask = {};
    plain.bias = {};
    plain.dropout = {};
    plain.relative_bias = {};
    SdpaOptions unscaled = plain, biased = plain;
    unscaled.scale = 1;
    biased.bias = saved_.sdpa.bias;
    if (saved_.sdpa.relative_bias) keep_distances(saved_.sdpa, &biased);
    stage(TraceKind::scores, unscaled, MapValue::scaled_score);
    if (config_.scale.value_or(1 / std::sqrt(static_cast<double>(config_.head_width))) != 1)
      stage(TraceKind::scale, plain, MapValue::scaled_score);
    if (config_.softcap > 0) stage(TraceKind::softcap, plain, MapValue::capped_score);
    if (options_.bias || options_.relative_bias) stage(TraceKind::bias, biased, MapValue::score);
    if (restricts(options_.mask)) {
      stage(TraceKind::mask, saved_.sdpa, MapValue::score);
      steps_.back().mask = mask_counts();
    }
    stage(TraceKind::softmax, saved_.sdpa, MapValue::probability);
    if (saved_.sdpa.dropout.p > 0) stage(TraceKind::dropout, saved_.sdpa, MapValue::dropped);
  }

  // Copies the parts of a mask that define the distances of a relative bias, which are diagonals and documents. The step `bias` needs them, because it shows
  // the bias without the mask.
  static void keep_distances(const SdpaOptions& from, SdpaOptions* to) {
    const Mask& mask = from.mask;
    to->relative_bias = from.relative_bias;
    to->mask = {.diagonal_offsets = mask.diagonal_offsets, .query_offsets = mask.query_offsets, .key_offsets = mask.key_offsets};
    if (mask.diagonal_offsets) return;
    if (mask.causal) to->relative_bias.diagonal = mask.causal;
    if (!mask.causal && mask.window.diagonal) to->relative_bias.diagonal = mask.window.diagonal;
  }

  MaskCounts mask_counts() const {
    const std::int64_t keys = shapes_.keys + shapes_.added_keys;
    Mask mask = saved_.sdpa.mask;
    // without causal and without bounds of the window, these members only shift the relative bias
    if (!mask.causal && !mask.window.left && !mask.window.right) mask.diagonal_offsets = {}, mask.window.diagonal = {};
    const Tensor dense = dense_mask("trace", mask, shapes_.lead, config_.heads, shapes_.queries, keys);
    const std::int64_t rows = keys == 0 ? numel(shapes_.lead) * shapes_.queries : dense.numel() / keys;
    MaskCounts counts{.pairs = dense.numel(), .shared_by_heads = dense.extent(-3) == 1 && config_.heads > 1};
    for (std::int64_t row = 0; row < rows; ++row) {
      std::int64_t in_row = 0;
      for (std::int64_t s = 0; s < keys; ++s) in_row += dense.data<bool>()[row * keys + s];
      counts.attended += in_row;
      counts.empty_rows += in_row == 0;
    }
    return counts;
  }

  void outputs() {
    add(TraceKind::weighted_values, head_letters("N", queries_, "V"), saved_.attended_heads);
    add(TraceKind::merge, input_letters(queries_, "N*V"), saved_.attended);
    if (config_.gate == Gate::sigmoid) {
      add(TraceKind::gate, input_letters("T", "N*V"), saved_.gate);
      Tensor gated(config_.dtype, saved_.gate.shape());
      multiply(saved_.attended, saved_.gate, gated, options_.executor);
      add(TraceKind::gated, input_letters("T", "N*V"), gated);
    }
    if (config_.output == OutputProjection::linear) {
      add(TraceKind::output_projection, input_letters(config_.gate == Gate::sigmoid ? "T" : queries_, "Eo"), out_);
    }
  }

  const MultiHeadAttention& layer_;
  const MultiHeadAttentionConfig& config_;
  const AttentionInput& input_;
  const AttentionOptions& options_;
  AttentionShapes shapes_;
  Tensor out_;
  MultiHeadAttention::Saved saved_;
  std::string queries_, keys_, key_heads_;
  std::vector<TraceStep> steps_, normed_, rotated_;
};

}  // namespace

std::vector<TraceStep> trace(const MultiHeadAttention& layer, const AttentionInput& input, const AttentionOptions& options) {
  return Tracer(layer, input, options).run();
}

}  // namespace polyhead::nn
