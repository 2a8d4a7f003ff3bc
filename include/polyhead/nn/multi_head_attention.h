// Multi-head attention as a layer: projections q, k, v -> heads -> sdpa -> merge -> gate -> output projection (Vaswani et al. 2017, section
// 3.2.2; gate, pair bias and global attention as in Jumper et al. 2021, supplementary algorithms 7, 8 and 19). The attention layers
// of common models are configurations of this one; examples/ has five of them.
//
// The last dimension of an input is its width. Attention runs along the dimension `axis`; the remaining ones are leading dimensions,
// written * below, in their order. T queries, S keys, N heads, K key/value heads. Widths: H of a query/key head, V of a value head,
// Eq, Ek, Ev of the query, key and value inputs, Eo of the output. S' = S + added keys (add_bias_kv, add_zero_attn).
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "polyhead/maps.h"
#include "polyhead/nn/key_value_cache.h"
#include "polyhead/nn/linear.h"
#include "polyhead/nn/rms_norm.h"
#include "polyhead/nn/rotary.h"
#include "polyhead/score_rule.h"
#include "polyhead/sdpa.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

enum class OutputProjection : std::uint8_t { linear, none };
enum class Gate : std::uint8_t { none, sigmoid };

// Global attention has one query per sequence, projected from the mean of the query inputs along the axis, and one key/value head.
// Along the axis the output has an extent of 1, or T with a gate.
enum class GlobalQuery : std::uint8_t {
  off,
  mean,         // the mean over all positions
  masked_mean,  // the mean over the positions that attend_keys, block_keys, key_starts and key_lengths do not mask; 0 if all are masked
};

struct MultiHeadAttentionConfig {
  std::int64_t query_width = 0;       // Eq
  std::int64_t key_width = 0;         // Ek; 0: query_width
  std::int64_t value_width = 0;       // Ev; 0: key_width
  std::int64_t heads = 1;             // N
  std::int64_t kv_heads = 0;          // K; 0: heads, or 1 with a global query
  std::int64_t head_width = 0;        // H; 0: query_width / heads, which must be whole
  std::int64_t value_head_width = 0;  // V; 0: head_width
  std::int64_t output_width = 0;      // Eo; 0: query_width, or N*V without an output projection, which has no other width
  bool bias = true;                   // whether the projections q, k and v have a bias
  bool output_bias = true;            // whether the output projection has a bias; the gate of a new layer always has one
  bool qk_norm = false;               // applies an RMS norm to each head's q and k after the projection, before rotary positions (Qwen 3, Gemma 3)
  OutputProjection output = OutputProjection::linear;
  Gate gate = Gate::none;
  GlobalQuery global_query = GlobalQuery::off;
  int axis = -2;
  bool add_bias_kv = false;       // adds one learned key and value after the S keys; every query may attend to it
  bool add_zero_attn = false;     // adds one key and value of zeros after the S keys and the learned key; every query may attend to it
  bool sink = false;              // learns a sink logit for each head, as in gpt-oss (2025); Error unless empty_rows is zero
  double dropout = 0;             // in training: dropout of attention weights
  std::optional<double> scale{};  // absent: 1/sqrt(H)
  double softcap = 0;
  EmptyRows empty_rows = EmptyRows::zero;
  Precision precision = Precision::native;  // precision of attention if dtype is bfloat16; the projections do not depend on it
  DType dtype = DType::f32;
  std::optional<std::uint64_t> seed{};  // draws the initial parameters; the constructor requires it, make_attention does not read it
};

struct AttentionInput {
  ConstTensorView query;       // [.., T at axis, .., Eq]
  ConstTensorView key = {};    // [.., S at axis, .., Ek]; if absent, `query` is used
  ConstTensorView value = {};  // [.., S at axis, .., Ev]; if absent, the key input is used
  // Keys [*,K,S,H] and values [*,K,S,V] that replace key and value, for example from a cache. They are already projected; the keys are also
  // already normed if the layer has qk_norm, and already rotated if the call has rotary positions. Their dtype is that of the parameters; unless the parameters
  // are float64, it may also be bfloat16, float16 or int8. If their dtype is not that of the parameters, there is no backward pass.
  ConstTensorView projected_key = {}, projected_value = {};
  ConstTensorView projected_key_scale = {}, projected_value_scale = {};  // [*,K,S], scales of int8 keys and values, as SdpaForward::k_scale. Error with added keys.
};

enum class Mode : std::uint8_t { evaluation, training };

struct AttentionOptions {
  [[no_unique_address]] NamedMembers named_members = NamedMembers();
  // attend, block, bias and dropout_keep broadcast to [*,N,T,S]: each is [T,S] or has every dimension, of extent 1 where it is shared. With
  // one leading dimension [B,1,T,S] differs by sequence and [1,N,T,S] by head; three dimensions, which could mean either, are an Error.
  // attend_keys, block_keys: broadcast to [*,S], or as mask_like_input says. key_starts, key_lengths: [*] or [*,T]. diagonal_offsets: [*].
  // query_offsets, key_offsets: Error with added keys or a global query.
  Mask mask{};
  // Layout of attend_keys and block_keys; it matters only if config.axis is not -2. True: as the key input without its width, [.., S at axis, ..];
  // Error with a cache, or without either mask. False: [*,S], the axis moved last. Absent: [*,S]; Error if the mask's shape fits both layouts, as with a square input.
  std::optional<bool> mask_like_input{};
  ConstTensorView bias{};
  RelativeBias relative_bias{};  // not together with `bias`; Error with added keys or a global query
  ConstTensorView sink{};  // sink logits as in SdpaOptions: [N], or broadcasts to [*,N,T]; Error unless config.empty_rows is zero, or with config.sink
  // As SdpaOptions::score_rule; `data` must live until the backward pass. Positions count the rows of the inputs; keys that the layer adds follow those
  // of the key input. Error with a cache, whose tokens have other positions, or with a global query, which has no position.
  ScoreRule score_rule{};
  Mode mode = Mode::evaluation;
  std::optional<std::uint64_t> dropout_seed{};  // in training with dropout: required, unless dropout_keep is given
  ConstTensorView dropout_keep{};               // in training: replaces the keep bits that are drawn from dropout_seed; broadcasts to [*,N,T,S']. Error in evaluation or without dropout.
  Rotary rotary{};                              // rotates the projected (and normed) q and k, but neither projected_key nor the added keys
  // Keys and values of earlier tokens, for a text that is computed a few tokens at a time: forward() appends the projected and rotated keys
  // and values of `query`, then the queries attend to all tokens of their sequence in the cache. With causal (top_left or bottom_right,
  // which are the same here) or a window, the diagonal is at each query's own token. S is then the longest length after the append; the rotary
  // tables are those of the new tokens' positions, which start at cache->key_lengths(). new_tokens: as in KeyValueCache::append; absent: all T. Only for
  // self-attention in evaluation with one leading dimension [B]. Error with `saved`, added keys, a global query, documents, key_lengths or
  // diagonal_offsets. The cache is unchanged if forward() throws.
  KeyValueCache* cache = nullptr;
  ConstTensorView new_tokens{};
  // With a cache, in a call of several tokens: each query also attends to the tokens after its own. Encoder and EncoderLayer require this option, or a mask
  // that differs by query (causal, a window with `right`, attend or block with T rows). MultiHeadAttention itself always attends to later tokens unless the
  // mask forbids it. Error with causal.
  bool attend_later_tokens = false;
  const Backend* backend = nullptr;
  Executor* executor = nullptr;
  const Workspace* workspace = nullptr;  // in training: Error if the workspace has Parameters::constant
};

// The gradient d_p of a loss on the attention weights p of one head, for backward: such a loss guides what the head reads. p is what
// attention_map(saved.maps(), p, saved.sdpa) writes. Backward turns d_p into gradients of q and k (attention_map_backward()) and adds them to the gradients
// that come from the layer's output. Error with empty_rows uniform, and if a gradient of a bias or of sink logits is requested too.
struct AttentionWeightsGradient {
  std::int64_t layer = 0;     // index of the layer in its stack; 0 if the call runs one layer
  std::int64_t head = 0;
  ConstTensorView d_p;  // [*,T,S'] of the parameters' dtype; not read where p is 0. Gradients of the same head add up.
};

struct MultiHeadAttention : Module<MultiHeadAttention> {
  MultiHeadAttentionConfig config;  // as completed() returns it: every width is set
  Linear q, k, v;                   // weight [N*H,Eq] [K*H,Ek] [K*V,Ev]
  Linear output;                    // weight [Eo,N*V]; absent with OutputProjection::none
  Linear gate;                      // weight [N*V,Eq]; absent with Gate::none
  Tensor bias_k, bias_v;            // [1,1,K*H] [1,1,K*V]; absent without add_bias_kv
  Tensor sink;                      // [N]; absent without config.sink
  RMSNorm q_norm, k_norm;           // of width H, one for all heads; absent without config.qk_norm. The added keys are not normed.

  MultiHeadAttention() = default;
  // Initialised as torch.nn.MultiheadAttention: q, k, v Xavier uniform with zero biases, output uniform in +-1/sqrt(N*V) with zero bias.
  // The gate has zero weight and bias 1, so that it starts at sigmoid(1) (Jumper et al. 2021). Sink logits are 0. q_norm and
  // k_norm have weight 1 and epsilon 1e-6.
  explicit MultiHeadAttention(const MultiHeadAttentionConfig& config);

  Shape output_shape(const AttentionInput& input) const;
  Shape maps_shape(const AttentionInput& input) const;  // [*,N,T,S']

  // Intermediate results of a forward pass.
  struct Activations {
    Tensor query_mean;      // [.., 1, .., Eq]; only with a global query
    Tensor mean_positions;  // bool [*,T]: the positions that GlobalQuery::masked_mean averages
    // Projected and rotated, with the axes in the order of the inputs: [.., T, .., N*H], [.., S', .., K*H], [.., S', .., K*V]. k and v are absent if
    // projected_key and projected_value are used without a copy.
    Tensor q, k, v;
    Tensor unnormed_q, unnormed_k;  // q, and k without the added keys, before the norms; absent without config.qk_norm
    Tensor attended;                                            // [.., T, .., N*V], merged heads before the gate
    Tensor lse;                                                 // [*,N,T]
    Tensor gate;                                                // [.., T, .., N*V], after the sigmoid
    Tensor padded_mask, padded_bias;                            // mask and bias extended to S' keys; absent without added keys
    ConstTensorView q_heads, k_heads, v_heads, attended_heads;  // [*,N,T,H] [*,K,S',H] [*,K,S',V] [*,N,T,V]: views of q, k, v, attended
    SdpaOptions sdpa;  // options of the sdpa_forward call, without executor and workspace; mask and bias view the caller's memory or padded_*

    // Calls f(name, tensor) for the tensors that restore() needs; those that the layer does not use are absent.
    template <class F>
    void visit(const F& f) {
      f("query_mean", query_mean), f("q", q), f("k", k), f("v", v), f("unnormed_q", unnormed_q), f("unnormed_k", unnormed_k), f("attended", attended), f("lse", lse), f("gate", gate);
    }

    Activations() = default;
    Activations(Activations&&) = default;
    Activations& operator=(Activations&&) = default;
  };

  // What backward and maps need from a forward pass. It owns the activations. Inputs, mask, biases, sink (also
  // the layer's), dropout_keep and rotary tables are only views: the caller keeps their memory until the last use.
  struct Saved : Activations {
    AttentionInput input;
    ConstTensorView bias;              // the bias that forward was given; relative_bias and sink are in `sdpa`
    Rotary rotary;                     // the rotary tables that forward was given
    MultiHeadAttentionConfig config;   // configuration of the layer
    bool constant_parameters = false;  // whether forward() used a workspace with Parameters::constant

    // The input for maps.h: attention_map(saved.maps(), out [*,N,T,S'], saved.sdpa).
    MapsInput maps() const { return {.q = q_heads, .k = k_heads, .k_scale = input.projected_key_scale}; }
  };

  // Only gradients whose view is set are computed. A computed gradient overwrites the memory of its view; for parameters, parameters_write decides. If `key` or
  // `value` of the input is absent, its gradient is added to the gradient of the input that is used instead.
  struct Gradients {
    TensorView query = {}, key = {}, value = {};
    TensorView projected_key = {}, projected_value = {};
    TensorView bias = {};                      // exactly the shape of options.bias
    TensorView relative_bias = {};             // exactly the shape and dtype of options.relative_bias.slopes or .table
    TensorView sink = {};                      // exactly the shape and dtype of options.sink
    TensorView score_rule = {};                // float64 [N, options.score_rule.gradient_count]
    MultiHeadAttention* parameters = nullptr;  // a layer of the same shapes, for example zeros_like(layer); nullptr: not computed
    Write parameters_write = Write::replace;   // replace or add, as in nn::Gradients
    std::span<const AttentionWeightsGradient> attention_weights = {};  // input: gradients d_p of a loss on attention weights
  };

  // attention_weights: output [*,N,T,S'] of the parameters' dtype, p before dropout; it does not change `out`. Error without `saved`.
  void forward(const AttentionInput& input, TensorView out, const AttentionOptions& options = {}, Saved* saved = nullptr,
               TensorView attention_weights = {}) const;
  // Restores `saved` for callers that keep the tensors of saved.visit() themselves between the passes, as PyTorch does. On entry `saved` holds these tensors;
  // restore() sets the other members to what forward() with this input and these options has set.
  void restore(const AttentionInput& input, const AttentionOptions& options, Saved& saved) const;
  // Everything is checked before anything is written. The gradients may not overlap each other or a tensor that is read. Error if `saved`
  // comes from a layer of another structure.
  void backward(const Saved& saved, ConstTensorView d_out, const Gradients& gradients, const RunOptions& options = {}) const;

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("config", self.config...);
    f("q", self.q...);
    f("k", self.k...);
    f("v", self.v...);
    f("output", self.output...);
    f("gate", self.gate...);
    f("bias_k", self.bias_k...);
    f("bias_v", self.bias_v...);
    f("sink", self.sink...);
    f("q_norm", self.q_norm...);
    f("k_norm", self.k_norm...);
  }
};

// Completes a configuration (every 0 replaced by its default); Error where widths and heads do not fit.
MultiHeadAttentionConfig completed(const MultiHeadAttentionConfig& config);

// Returns a layer of existing parameters, which are moved, not copied, and may be views of a mapped file. It is an Error if the call lacks a parameter
// that the completed configuration has, gives one that it does not have, or gives one of another shape or dtype. The check includes the biases of q, k
// and v (`bias`) and of the output (`output_bias`). The gate may have a bias or not.
MultiHeadAttention make_attention(const MultiHeadAttentionConfig& config, Linear q, Linear k, Linear v, Linear output = {},
                                  Linear gate = {}, Tensor bias_k = {}, Tensor bias_v = {}, Tensor sink = {}, RMSNorm q_norm = {},
                                  RMSNorm k_norm = {});

}  // namespace polyhead::nn
#pragma GCC visibility pop
