#include <array>
#include <span>
#include <vector>

#include "core/option_words.h"
#include "nn/attention_pass.h"
#include "nn/attention_weights_gradient.h"
#include "nn/check.h"
#include "nn/elementwise.h"
#include "nn/parameter_gradient.h"
#include "polyhead/nn/multi_head_attention.h"
#include "sdpa/gradient_names.h"

namespace polyhead::nn {
namespace {

constexpr const char* kBackward = "MultiHeadAttention.backward";

// A gradient that the backward pass computes, and the input whose gradient it is.
struct GradientOfInput {
  Operand gradient;
  ConstTensorView input;
};

static_assert(kGradientNames.size() == kInputGradients + 3, "each option with a gradient has a member in MultiHeadAttention::Gradients: bias, relative_bias, sink");

// Pairs each gradient with its input. `sdpa` holds the options of the pass, with the bias and sink that were passed to forward().
std::array<GradientOfInput, 8> gradients_of(const MultiHeadAttention::Gradients& gradients, const AttentionInput& input, const SdpaOptions& sdpa) {
  const auto& [query, key, value, projected_key, projected_value, bias, relative_bias, sink, score_rule, parameters, parameters_write, attention_weights] =
      gradients;
  return {{{{"the gradient of query", query}, input.query},
           {{"the gradient of key", key}, input.key},
           {{"the gradient of value", value}, input.value},
           {{"the gradient of projected_key", projected_key}, input.projected_key},
           {{"the gradient of projected_value", projected_value}, input.projected_value},
           {{"the gradient of bias", bias, true}, sdpa.bias},
           {{"the gradient of relative_bias", relative_bias, true}, sdpa.relative_bias.parameter()},
           {{"the gradient of sink", sink, true}, sdpa.sink}}};
}

// Error if the two layers differ in a way that would make the gradients wrong. The message names the first difference.
void require_same_structure(const MultiHeadAttentionConfig& saved, const MultiHeadAttentionConfig& own) {
  const auto same = [&](const char* name, const auto& of_saved, const auto& of_own) {
    require(of_saved == of_own, kBackward, ": saved comes from a layer with ", name, " ", of_saved, "; this layer: ", of_own);
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
  static constexpr const char* kYes[] = {"no", "yes"};
  same("an output projection:", kYes[saved.output == OutputProjection::linear], kYes[own.output == OutputProjection::linear]);
  same("a gate:", kYes[saved.gate == Gate::sigmoid], kYes[own.gate == Gate::sigmoid]);
  same("global_query", word_of(saved.global_query, kGlobalQueryWords), word_of(own.global_query, kGlobalQueryWords));
  same("add_bias_kv:", kYes[saved.add_bias_kv], kYes[own.add_bias_kv]);
  same("add_zero_attn:", kYes[saved.add_zero_attn], kYes[own.add_zero_attn]);
  same("learned sink logits:", kYes[saved.sink], kYes[own.sink]);
  same("norms of q and k:", kYes[saved.qk_norm], kYes[own.qk_norm]);
}

// One backward pass. Each public function reverses a step of forward(), and they are called from the last step to the first (docs/maths.md, eq. 16-22).
class BackwardPass {
 public:
  // Checks shapes, dtypes and overlaps, so that an error is found before anything is written.
  BackwardPass(const MultiHeadAttention& layer, const MultiHeadAttention::Saved& saved, ConstTensorView d_out, const MultiHeadAttention::Gradients& gradients,
               const RunOptions& options)
      : layer_(layer), config_(layer.config), saved_(saved), d_out_(d_out), gradients_(gradients), grads_(gradients.parameters), options_(options) {
    require(static_cast<bool>(saved_.lse), kBackward, ": saved is empty; give it to forward first");
    require_same_structure(saved_.config, config_);
    const AttentionInput& input = saved_.input;
    shapes_ = attention_shapes(kBackward, config_, input);
    masked_ = restricts(saved_.sdpa.mask);
    require(!input.projected_key || input.projected_key.dtype() == config_.dtype, kBackward, ": projected_key is ", input.projected_key.dtype(),
            "; gradients need keys and values in the dtype of the parameters, ", config_.dtype);
    require_exactly(kBackward, {"d_out", d_out}, output_shape_of(config_, shapes_), config_.dtype);
    SdpaOptions of_forward = saved_.sdpa;
    of_forward.bias = saved_.bias;
    if (config_.sink) of_forward.sink = {};
    std::vector<Operand> read = inputs_of(input, of_forward, of_forward.dropout.keep, saved_.rotary);
    read.push_back({"d_out", d_out});
    require(!saved_.sdpa.score_rule || saved_.sdpa.score_rule.backward != nullptr, kBackward, ": score_rule has no backward function");
    require_attention_weights_gradients(kBackward, gradients_.attention_weights, layer_, saved_, gradients_);
    for (const AttentionWeightsGradient& one : gradients_.attention_weights) read.push_back({"d_p", one.d_p});
    std::vector<Operand> written;
    for (const auto& [gradient, of] : gradients_of(gradients_, input, of_forward)) {
      written.push_back(gradient);
      if (!gradient.view) continue;
      require(static_cast<bool>(of), kBackward, ": ", gradient.name, " is requested, but forward() was called without this input");
      require_exactly(kBackward, gradient, of.shape(), of.dtype());
    }
    if (gradients_.score_rule) {
      written.push_back({"the gradient of score_rule", gradients_.score_rule});
      require(static_cast<bool>(saved_.sdpa.score_rule), kBackward, ": the gradient of score_rule is requested, but forward() was called without this input");
      require_exactly(kBackward, written.back(), {shapes_.heads, saved_.sdpa.score_rule.gradient_count}, DType::f64);
    }
    polyhead::require_no_overlap(kBackward, written, read);
    require_parameters_separate(kBackward, std::span(written), layer_);
    if (grads_ == nullptr) return;
    require_parameters_may_change(kBackward, saved_.constant_parameters, options_.workspace);
    require_gradients(kBackward, layer_, *grads_, read, written);
  }

  // Reverses out = output(attended * gate).
  void output_and_gate() {
    const bool gated = config_.gate == Gate::sigmoid;
    Tensor gated_heads, d_projection_input;
    if (gated) {
      gated_heads = allocate(saved_.gate.shape());
      multiply(saved_.attended, saved_.gate, gated_heads, options_.executor);
    }
    if (config_.output == OutputProjection::linear) {
      const ConstTensorView projection_input = gated ? ConstTensorView(gated_heads) : ConstTensorView(saved_.attended);
      d_projection_input = allocate(projection_input.shape());
      layer_.output.backward(projection_input, d_out_, into(&MultiHeadAttention::output, d_projection_input), options_);
    } else {
      d_projection_input = allocate(d_out_.shape());
      copy(d_out_, d_projection_input);
    }
    if (gated) {
      d_gate_ = std::move(gated_heads);  // reuses its memory
      gate_backward(saved_.gate, saved_.attended, d_projection_input, d_gate_, options_.executor);
    }
    if (!gated || saved_.attended.shape() == saved_.gate.shape()) {
      d_attended_ = std::move(d_projection_input);
    } else {  // The result of the one global query was gated at every position, so its gradient is the sum over the positions.
      d_attended_ = allocate(saved_.attended.shape());
      reduce_positions(positions_last(ConstTensorView(d_projection_input), shapes_.axis), {}, Reduce::sum, positions_last(d_attended_.view(), shapes_.axis),
                       options_.executor);
    }
  }

  // Reverses attended = sdpa(q, k, v).
  void attention() {
    if (d_query() || grads_) d_q_ = allocate(saved_.q.shape());
    if (d_q_) d_q_heads_ = split_heads(d_q_.view(), shapes_.axis, config_.heads);
    d_k_heads_ = key_heads(layer_.k, d_key(), gradients_.projected_key, d_k_);
    d_v_heads_ = key_heads(layer_.v, d_value(), gradients_.projected_value, d_v_);
    TensorView d_bias = gradients_.bias;
    Tensor d_padded_bias;
    if (d_bias && saved_.padded_bias) {
      d_padded_bias = Tensor(config_.dtype, saved_.padded_bias.shape());
      d_bias = d_padded_bias;
    }
    SdpaOptions sdpa = saved_.sdpa;
    sdpa.executor = options_.executor;
    sdpa.workspace = options_.workspace;
    if (config_.sink) sdpa.sink = layer_.sink;
    const bool learns_sink = config_.sink && grads_;
    const TensorView d_own_sink = learns_sink ? grads_->sink.view() : gradients_.sink;
    write_gradient(d_own_sink, learns_sink ? gradients_.parameters_write : Write::replace, options_, [&](TensorView d_sink) {
      sdpa_backward({.q = saved_.q_heads,
                     .k = saved_.k_heads,
                     .v = saved_.v_heads,
                     .out = saved_.attended_heads,
                     .lse = saved_.lse,
                     .d_out = split_heads(ConstTensorView(d_attended_), shapes_.axis, config_.heads),
                     .d_q = d_q_heads_,
                     .d_k = d_k_heads_,
                     .d_v = d_v_heads_,
                     .d_bias = d_bias,
                     .d_relative_bias = gradients_.relative_bias,
                     .d_sink = d_sink,
                     .d_score_rule = gradients_.score_rule},
                    sdpa);
    });
    d_attended_ = {};  // frees the memory of d_attended_ for the steps that follow
    add_attention_weights_gradients(gradients_.attention_weights, saved_.maps(), sdpa, d_q_heads_, d_k_heads_);
    if (d_padded_bias) sum_to(d_padded_bias.view().slice(-1, 0, shapes_.keys), gradients_.bias);
  }

  // Reverses q = rotated(norm(q)), k = rotated(norm(k)), without the added keys.
  void rotary_and_norms() {
    const bool projects_keys = !saved_.input.projected_key;
    apply_rotary(saved_.rotary, Rotation::inverse, shapes_, d_q_heads_, projects_keys ? d_k_heads_ : TensorView(), options_.executor);
    if (!config_.qk_norm) return;
    if (d_q_) norm_backward(&MultiHeadAttention::q_norm, config_.heads, saved_.unnormed_q, d_q_);
    if (d_k_ && projects_keys) norm_backward(&MultiHeadAttention::k_norm, config_.kv_heads, saved_.unnormed_k, without_added_keys(d_k_));
  }

  // Reverses q = q(query), k = [k(key), bias_k, 0], v = [v(value), bias_v, 0], gate = sigmoid(gate(query)).
  void projections() {
    if (d_q_) query_backward();
    if (saved_.input.projected_key) {
      projected_keys_backward();
    } else {
      const AttentionInput& input = saved_.input;
      const ConstTensorView key = input.key ? input.key : input.query, value = input.value ? input.value : key;
      // If an input is absent, its gradient is added to the gradient of the input that is used instead.
      const auto write_for = [](ConstTensorView given) { return given ? Write::replace : Write::add; };
      if (d_k_) project_backward(&MultiHeadAttention::k, key, without_added_keys(d_k_), d_key(), write_for(input.key));
      if (d_v_) project_backward(&MultiHeadAttention::v, value, without_added_keys(d_v_), d_value(), write_for(input.value));
    }
    if (config_.gate == Gate::sigmoid) layer_.gate.backward(saved_.input.query, d_gate_, into(&MultiHeadAttention::gate, d_query(), Write::add), options_);
    if (config_.add_bias_kv && grads_) {
      learned_key_backward(d_k_, grads_->bias_k);
      learned_key_backward(d_v_, grads_->bias_v);
    }
  }

 private:
  Tensor allocate(const Shape& shape) const { return uninitialised(config_.dtype, shape, options_.workspace); }

  nn::Gradients<Linear> into(Linear MultiHeadAttention::*projection, TensorView d_x, Write x_write = Write::replace) const {
    return {.x = d_x, .parameters = grads_ ? &(grads_->*projection) : nullptr, .x_write = x_write, .parameters_write = gradients_.parameters_write};
  }

  TensorView d_query() const { return gradients_.query; }
  TensorView d_key() const { return saved_.input.key ? gradients_.key : d_query(); }
  TensorView d_value() const { return saved_.input.value ? gradients_.value : d_key(); }

  // Returns the memory for the gradient of k or v, [*,K,S',.]; absent if no requested gradient needs it. It is the caller's memory if possible, else `d`.
  TensorView key_heads(const Linear& projection, TensorView d_input, TensorView d_projected, Tensor& d) const {
    if (d_projected && shapes_.added_keys == 0) return d_projected;
    if (saved_.input.projected_key ? !d_projected && !(grads_ && config_.add_bias_kv) : !d_input && !grads_) return {};
    d = allocate(with_extents(shapes_.key, shapes_.axis, shapes_.keys + shapes_.added_keys, projection.out_width()));
    return split_heads(d.view(), shapes_.axis, config_.kv_heads);
  }

  TensorView without_added_keys(Tensor& d) const { return d.view().slice(shapes_.axis, 0, shapes_.keys); }

  // Replaces the gradient of normalised heads by the gradient of the heads before the norm. NaN in masked keys is left out, because it must not reach the
  // gradient of the norm's weight.
  void norm_backward(RMSNorm MultiHeadAttention::*norm, std::int64_t heads, const Tensor& unnormed, TensorView d_normed) const {
    Tensor d_unnormed = allocate(unnormed.shape());
    const Tensor reached = masked_ ? without_unreached_rows(unnormed, d_normed, options_.executor, options_.workspace) : Tensor();
    (layer_.*norm).backward(split_heads(reached ? reached.view() : unnormed.view(), shapes_.axis, heads),
                            split_heads(ConstTensorView(d_normed), shapes_.axis, heads),
                            {.x = split_heads(d_unnormed.view(), shapes_.axis, heads),
                             .parameters = grads_ ? &(grads_->*norm) : nullptr,
                             .parameters_write = gradients_.parameters_write},
                            options_);
    copy(d_unnormed, d_normed);
  }

  // The backward pass of one projection. NaN in masked keys is left out, as in norm_backward().
  void project_backward(Linear MultiHeadAttention::*projection, ConstTensorView x, ConstTensorView d_y, TensorView d_x, Write x_write) const {
    const Tensor reached = grads_ && masked_ ? without_unreached_rows(x, d_y, options_.executor, options_.workspace) : Tensor();
    (layer_.*projection).backward(reached ? ConstTensorView(reached) : x, d_y, into(projection, d_x, x_write), options_);
  }

  void query_backward() const {
    if (config_.global_query == GlobalQuery::off) return project_backward(&MultiHeadAttention::q, saved_.input.query, d_q_, d_query(), Write::replace);
    Tensor d_mean = allocate(saved_.query_mean.shape());
    project_backward(&MultiHeadAttention::q, saved_.query_mean, d_q_, d_mean.view(), Write::replace);
    if (!d_query()) return;
    spread_mean(positions_last(ConstTensorView(d_mean), shapes_.axis), saved_.mean_positions, positions_last(d_query(), shapes_.axis), options_.executor);
  }

  // The backward pass for keys and values that the caller has projected. The layer's own projections then have no part in the result, so their gradients are 0.
  void projected_keys_backward() const {
    const auto copy_given_keys = [&](TensorView heads, TensorView d_projected) {
      if (d_projected && shapes_.added_keys > 0) copy(heads.slice(-2, 0, shapes_.keys), d_projected);
    };
    copy_given_keys(d_k_heads_, gradients_.projected_key), copy_given_keys(d_v_heads_, gradients_.projected_value);
    if (grads_ == nullptr || gradients_.parameters_write != Write::replace) return;
    const auto clear = [](const std::string&, Tensor& tensor) { fill(tensor, 0); };
    grads_->k.visit(clear), grads_->v.visit(clear), grads_->k_norm.visit(clear);
  }

  // Computes the gradient of bias_k or bias_v, the learned key or value after the S positions.
  void learned_key_backward(const Tensor& d, Tensor& learned) const {
    write_gradient(learned.view().reshape({d.extent(-1)}), gradients_.parameters_write, options_,
                   [&](TensorView target) { sum_to(d.view().slice(shapes_.axis, shapes_.keys, shapes_.keys + 1), target); });
  }

  const MultiHeadAttention& layer_;
  const MultiHeadAttentionConfig& config_;
  const MultiHeadAttention::Saved& saved_;
  const ConstTensorView d_out_;
  const MultiHeadAttention::Gradients& gradients_;
  MultiHeadAttention* const grads_;  // receives the gradients of the parameters; nullptr: they are not computed
  const RunOptions& options_;
  AttentionShapes shapes_;
  bool masked_ = false;  // true: the mask may mask some pair of a query and a key
  Tensor d_gate_, d_attended_;
  Tensor d_q_, d_k_, d_v_;  // The gradients of q, k and v, in the order of the input's dimensions; absent if no requested gradient needs them.
  // [*,N,T,H] [*,K,S',H] [*,K,S',V]: views of d_q_, d_k_ and d_v_. If the layer adds no keys, d_k_heads_ and d_v_heads_ are views of the caller's memory for
  // the gradients of projected_key and projected_value, as far as those are requested.
  TensorView d_q_heads_, d_k_heads_, d_v_heads_;
};

}  // namespace

void MultiHeadAttention::backward(const Saved& saved, ConstTensorView d_out, const Gradients& gradients, const RunOptions& options) const {
  BackwardPass pass(*this, saved, d_out, gradients, options);
  pass.output_and_gate();
  pass.attention();
  pass.rotary_and_norms();
  pass.projections();
}

}  // namespace polyhead::nn
