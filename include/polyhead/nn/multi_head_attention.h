// Multi-head attention as a layer: projections q, k, v -> heads -> sdpa -> merge -> gate -> output projection (Vaswani et al. 2017, section
// 3.2.2; gate, pair bias and global attention as in Jumper et al. 2021, supplementary algorithms 7, 8 and 19). The attention layers
// of common models are configurations of this one; examples/ has five of them.
//
// The last dimension of an input is its width. Attention runs along the dimension `axis`. All other dimensions are leading dimensions, written * below.
// Letters: T queries, S keys, N heads, K key/value heads. Widths: H of a query/key head, V of a value head, Eq, Ek, Ev of the query, key and value inputs, Eo
// of the output. S' is S plus the number of keys that the layer adds (add_bias_kv, add_zero_attn).
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

// Global attention has one query per sequence and one key/value head. The query is projected from the mean of the query inputs along the axis. Along the axis
// the output has the extent 1, or T with a gate.
enum class GlobalQuery : std::uint8_t {
  off,
  mean,         // the mean over all positions of the query input
  masked_mean,  // the mean over the positions of the query input that attend_keys, block_keys, key_starts and key_lengths do not mask; 0 if they mask all
};

struct MultiHeadAttentionConfig {
  std::int64_t query_width = 0;       // Eq, the width of the query input
  std::int64_t key_width = 0;         // Ek, the width of the key input; 0: query_width
  std::int64_t value_width = 0;       // Ev, the width of the value input; 0: key_width
  std::int64_t heads = 1;             // N, the number of query heads
  std::int64_t kv_heads = 0;          // K, the number of key/value heads; 0: heads, or 1 with a global query
  std::int64_t head_width = 0;        // H, the width of a query/key head; 0: query_width / heads, which must be a whole number
  std::int64_t value_head_width = 0;  // V, the width of a value head; 0: head_width
  std::int64_t output_width = 0;      // Eo, the width of the output; 0: query_width. Without an output projection the output has the width N*V.
  bool bias = true;                   // true: the projections q, k and v have a bias
  bool output_bias = true;            // true: the output projection has a bias. (The gate of a new layer always has one.)
  bool qk_norm = false;               // true: an RMS norm is applied to each head's q and k, after the projection and before rotary positions (Qwen 3, Gemma 3)
  OutputProjection output = OutputProjection::linear;
  Gate gate = Gate::none;
  GlobalQuery global_query = GlobalQuery::off;
  int axis = -2;
  bool add_bias_kv = false;       // true: one learned key and value follow the S keys; every query may attend to them
  bool add_zero_attn = false;     // true: one key and value of zeros follow the S keys and the learned key; every query may attend to them
  bool sink = false;              // true: the layer learns a sink logit for each head, as in gpt-oss (2025). Error unless empty_rows is zero
  double dropout = 0;             // in training: dropout probability of attention weights
  std::optional<double> scale{};  // the factor of the scores; absent: 1/sqrt(H)
  double softcap = 0;
  EmptyRows empty_rows = EmptyRows::zero;
  Precision precision = Precision::native;  // how attention multiplies bfloat16 tensors; the projections do not depend on it
  DType dtype = DType::f32;
  std::optional<std::uint64_t> seed{};  // The initial parameters are drawn with this seed. The constructor requires it; make_attention() does not read it.
};

struct AttentionInput {
  ConstTensorView query;       // the query input [.., T at axis, .., Eq]
  ConstTensorView key = {};    // the key input [.., S at axis, .., Ek]; absent: the query input is used
  ConstTensorView value = {};  // the value input [.., S at axis, .., Ev]; absent: the key input is used
  // Keys [*,K,S,H] and values [*,K,S,V] that are already projected, for example from a cache. They take the place of `key` and `value`. The keys must already
  // be normalised if the layer has qk_norm, and rotated if the call has rotary positions. Their dtype is that of the parameters; unless the parameters are
  // float64, it may also be bfloat16, float16 or int8. If it is not that of the parameters, there is no backward pass.
  ConstTensorView projected_key = {}, projected_value = {};
  // [*,K,S]: the scales of int8 projected_key and projected_value, as in SdpaForward::k_scale. Error with added keys.
  ConstTensorView projected_key_scale = {}, projected_value_scale = {};
};

enum class Mode : std::uint8_t { evaluation, training };

struct AttentionOptions {
  [[no_unique_address]] NamedMembers named_members = NamedMembers();
  // attend, block, bias and dropout_keep broadcast to [*,N,T,S]: each has the shape [T,S], or all dimensions, with the extent 1 where values are shared. With
  // one leading dimension, [B,1,T,S] differs by sequence and [1,N,T,S] by head; three dimensions could mean either, and are an Error. attend_keys and
  // block_keys broadcast to [*,S], or have the shape that mask_like_input names. key_starts and key_lengths are [*] or [*,T]; diagonal_offsets is [*].
  // query_offsets and key_offsets are an Error with added keys or a global query.
  Mask mask{};
  // The shape of attend_keys and block_keys; it matters only if config.axis is not -2. True: that of the key input without its width, [.., S at axis, ..];
  // Error with a cache, or if neither mask is given. False: [*,S], where the axis is moved last. Absent: [*,S]; Error if the mask's shape fits both, as with a
  // square input.
  std::optional<bool> mask_like_input{};
  ConstTensorView bias{};
  RelativeBias relative_bias{};  // Error together with `bias`, with added keys, or with a global query
  // The sink logits of the call, as in SdpaOptions: [N], or a tensor that broadcasts to [*,N,T]. Error unless config.empty_rows is zero, and if config.sink is
  // true.
  ConstTensorView sink{};
  // See SdpaOptions::score_rule; `data` must live until the backward pass. Positions count the rows of the inputs; the keys that the layer adds follow those of
  // the key input. Error with a cache, whose tokens have other positions, or with a global query, which has no position.
  ScoreRule score_rule{};
  Mode mode = Mode::evaluation;
  std::optional<std::uint64_t> dropout_seed{};  // required in training with dropout, unless dropout_keep is given
  // Only in training: the keep bits, instead of those that dropout_seed gives; broadcasts to [*,N,T,S']. Error in evaluation, or without dropout.
  ConstTensorView dropout_keep{};
  Rotary rotary{};                              // rotates q and k after their projections and norms; neither projected_key nor the added keys are rotated
  // Keys and values of earlier tokens, for a text that is computed a few tokens at a time. forward() appends the projected and rotated keys and values of
  // `query`; then the queries attend to all tokens of their sequence in the cache. With causal (top_left and bottom_right mean the same here) or a window, the
  // diagonal runs through each query's own token. S is the longest length after the append. The rotary tables are those of the new tokens' positions, which
  // start at cache->key_lengths(). For new_tokens see KeyValueCache::append(); absent: all T.
  // A cache needs self-attention in evaluation with one leading dimension [B]. Error with `saved`, added keys, a global query, documents, key_lengths or
  // diagonal_offsets. The cache is unchanged if forward() throws.
  KeyValueCache* cache = nullptr;
  ConstTensorView new_tokens{};
  // Only with a cache, in a call of several tokens: each query also attends to the tokens after its own. Encoder and EncoderLayer require this option, or a
  // mask that differs by query (causal, a window with `right`, attend or block with T rows). MultiHeadAttention itself always attends to later tokens unless
  // the mask forbids it. Error with causal.
  bool attend_later_tokens = false;
  const Backend* backend = nullptr;
  Executor* executor = nullptr;
  const Workspace* workspace = nullptr;  // in training, a workspace with Parameters::constant is an Error
};

// The gradient d_p of a loss on the attention weights p of one head: such a loss guides what the head reads. p is what attention_map(saved.maps(), p,
// saved.sdpa) writes. backward() turns d_p into gradients of q and k (attention_map_backward()) and adds them to the gradients that come from the layer's
// output. Error with EmptyRows::uniform, and if a gradient of a bias or of sink logits is requested too.
struct AttentionWeightsGradient {
  std::int64_t layer = 0;     // index of the layer in its stack; 0 for a single layer
  std::int64_t head = 0;
  ConstTensorView d_p;  // [*,T,S'] of the parameters' dtype; not read where p is 0. Several gradients of the same head are added up.
};

struct MultiHeadAttention : Module<MultiHeadAttention> {
  MultiHeadAttentionConfig config;  // a configuration that completed() has returned, so every width is set
  Linear q, k, v;                   // weight [N*H,Eq] [K*H,Ek] [K*V,Ev]
  Linear output;                    // weight [Eo,N*V]; absent with OutputProjection::none
  Linear gate;                      // weight [N*V,Eq]; absent with Gate::none
  Tensor bias_k, bias_v;            // [1,1,K*H] [1,1,K*V]; absent without add_bias_kv
  Tensor sink;                      // [N]; absent if config.sink is false
  RMSNorm q_norm, k_norm;           // norms of width H, which all heads share; absent if config.qk_norm is false. The added keys are not normalised.

  MultiHeadAttention() = default;
  // Makes a layer with initial parameters, most of them as in torch.nn.MultiheadAttention: q, k, v Xavier uniform with zero biases, output uniform in
  // +-1/sqrt(N*V) with zero bias. The gate has zero weight and bias 1, so that it starts at sigmoid(1) (Jumper et al. 2021). Sink logits are 0. q_norm and
  // k_norm have weight 1 and epsilon 1e-6.
  explicit MultiHeadAttention(const MultiHeadAttentionConfig& config);

  Shape output_shape(const AttentionInput& input) const;
  Shape maps_shape(const AttentionInput& input) const;  // [*,N,T,S']: the shape of the attention maps

  // Intermediate results of a forward pass.
  struct Activations {
    Tensor query_mean;      // [.., 1, .., Eq]; only with a global query
    Tensor mean_positions;  // bool [*,T]: the positions over which GlobalQuery::masked_mean averages
    // The projected and rotated q, k and v, with the axes in the order of the inputs: [.., T, .., N*H], [.., S', .., K*H], [.., S', .., K*V]. k and v are
    // absent if projected_key and projected_value are used without a copy.
    Tensor q, k, v;
    Tensor unnormed_q, unnormed_k;  // q, and k without the added keys, before their norms; absent if config.qk_norm is false
    Tensor attended;                                            // [.., T, .., N*V]: the merged heads before the gate
    Tensor lse;                                                 // [*,N,T]
    Tensor gate;                                                // [.., T, .., N*V]: the gate after the sigmoid
    Tensor padded_mask, padded_bias;                            // mask and bias, extended to the S' keys; absent without added keys
    ConstTensorView q_heads, k_heads, v_heads, attended_heads;  // [*,N,T,H] [*,K,S',H] [*,K,S',V] [*,N,T,V]: views of q, k, v and attended
    // the options of the call of sdpa_forward(), without executor and workspace; mask and bias are views of the caller's memory or of padded_*
    SdpaOptions sdpa;

    // Calls f(name, tensor) for the tensors that restore() needs. Tensors that the layer does not use are absent.
    template <class F>
    void visit(const F& f) {
      f("query_mean", query_mean), f("q", q), f("k", k), f("v", v), f("unnormed_q", unnormed_q), f("unnormed_k", unnormed_k), f("attended", attended), f("lse", lse), f("gate", gate);
    }

    Activations() = default;
    Activations(Activations&&) = default;
    Activations& operator=(Activations&&) = default;
  };

  // What backward() and maps need from a forward pass. Saved owns the activations. It only has views of the inputs, mask, biases, sinks (also the layer's),
  // dropout_keep and rotary tables, so the caller must keep their memory until the last use.
  struct Saved : Activations {
    AttentionInput input;
    ConstTensorView bias;              // the bias that was passed to forward(); relative_bias and sink are in `sdpa`
    Rotary rotary;                     // the rotary tables that were passed to forward()
    MultiHeadAttentionConfig config;   // the layer's configuration
    bool constant_parameters = false;  // true: forward() used a workspace with Parameters::constant

    // Returns the input of the functions in maps.h: attention_map(saved.maps(), out [*,N,T,S'], saved.sdpa).
    MapsInput maps() const { return {.q = q_heads, .k = k_heads, .k_scale = input.projected_key_scale}; }
  };

  // Where backward() writes the gradients. A gradient is computed if its view is set, and replaces what the view holds; for parameters, parameters_write
  // decides. If `key` or `value` of the input is absent, its gradient is added to the gradient of the input that is used instead.
  struct Gradients {
    TensorView query = {}, key = {}, value = {};
    TensorView projected_key = {}, projected_value = {};
    TensorView bias = {};                      // the gradient of options.bias, in its shape
    TensorView relative_bias = {};             // the gradient of options.relative_bias.slopes or .table, in its shape and dtype
    TensorView sink = {};                      // the gradient of options.sink, in its shape and dtype
    TensorView score_rule = {};                // float64 [N, options.score_rule.gradient_count]: the gradients of the numbers that the score rule reads
    // a layer with the same shapes, for example zeros_like(layer); nullptr: the gradients of the parameters are not computed
    MultiHeadAttention* parameters = nullptr;
    Write parameters_write = Write::replace;   // whether the gradients of the parameters replace what `parameters` holds, or are added to it
    std::span<const AttentionWeightsGradient> attention_weights = {};  // input: the gradients d_p of a loss on attention weights
  };

  // `attention_weights` is an output [*,N,T,S'] of the parameters' dtype: p before dropout. Requesting it does not change `out`. Error without `saved`.
  void forward(const AttentionInput& input, TensorView out, const AttentionOptions& options = {}, Saved* saved = nullptr,
               TensorView attention_weights = {}) const;
  // Restores `saved` for callers that keep the tensors of saved.visit() themselves between forward and backward pass, as PyTorch does. On entry `saved` holds
  // these tensors; restore() sets the other members to the values that forward() set for this input and these options.
  void restore(const AttentionInput& input, const AttentionOptions& options, Saved& saved) const;
  // Everything is checked before anything is written. A gradient may not overlap another gradient or a tensor that is read. Error if `saved` comes from a layer
  // of another structure.
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

// Replaces every 0 in a configuration by its default. Error if widths and heads do not fit together.
MultiHeadAttentionConfig completed(const MultiHeadAttentionConfig& config);

// Makes a layer of existing parameters. They are moved, not copied, and may be views of a mapped file. Error if a parameter of the completed configuration is
// missing, if a parameter is given that the configuration does not have, or if one has another shape or dtype. The check includes the biases of q, k and v
// (`bias`) and of the output (`output_bias`). The gate may have a bias or not.
MultiHeadAttention make_attention(const MultiHeadAttentionConfig& config, Linear q, Linear k, Linear v, Linear output = {},
                                  Linear gate = {}, Tensor bias_k = {}, Tensor bias_v = {}, Tensor sink = {}, RMSNorm q_norm = {},
                                  RMSNorm k_norm = {});

}  // namespace polyhead::nn
#pragma GCC visibility pop
