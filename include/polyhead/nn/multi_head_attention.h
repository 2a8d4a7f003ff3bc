// Multi-head attention as a layer: projections q, k, v -> heads -> sdpa -> merge -> gate -> output projection (Vaswani et al. 2017, section 3.2.2;
// gate, pair bias and global attention as in Jumper et al. 2021, supplementary algorithms 7, 8 and 19). The common layers are configurations of
// this one: examples/ and docs/adding.md show which.
//
// Inputs have any number of dimensions, the last one being the width. Attention runs along one of the others, `axis`; the rest are leading
// dimensions, written * below in their own order. T queries, S keys, N heads, K key/value heads, H and V the widths of a head.
#pragma once

#include <cstdint>
#include <optional>

#include "polyhead/maps.h"
#include "polyhead/nn/linear.h"
#include "polyhead/nn/rotary.h"
#include "polyhead/sdpa.h"

namespace polyhead::nn {

enum class OutputProjection : std::uint8_t { linear, none };
enum class Gate : std::uint8_t { none, sigmoid };

// Global attention: one query per sequence, the projection of the mean of the query inputs along the axis, against one key/value head.
// Without a gate the output has an extent of 1 along the axis; with a gate it has every position.
enum class GlobalQuery : std::uint8_t {
  off,
  mean,         // over all positions
  masked_mean,  // over the positions that attend_keys, block_keys and key_lengths leave; the mean of none is 0
};

struct MultiHeadAttentionConfig {
  std::int64_t query_width = 0;       // Eq
  std::int64_t key_width = 0;         // Ek; 0: as query_width
  std::int64_t value_width = 0;       // Ev; 0: as key_width
  std::int64_t heads = 1;             // N
  std::int64_t kv_heads = 0;          // K; 0: as heads, or 1 with a global query
  std::int64_t head_width = 0;        // H; 0: query_width / heads, which must be whole
  std::int64_t value_head_width = 0;  // V; 0: as head_width
  std::int64_t output_width = 0;      // Eo; 0: as query_width
  bool bias = true;                   // of the projections q, k and v
  bool output_bias = true;            // of the output projection; the gate always has a bias
  OutputProjection output = OutputProjection::linear;
  Gate gate = Gate::none;
  GlobalQuery global_query = GlobalQuery::off;
  int axis = -2;
  bool add_bias_kv = false;               // one learned key and value that every query may attend to, after the S keys
  bool add_zero_attn = false;              // one key and value of zeros, after those
  double dropout = 0;                 // of attention weights, in training
  std::optional<double> scale{};      // 1/sqrt(H)
  double softcap = 0;
  EmptyRows empty_rows = EmptyRows::zero;
  DType dtype = DType::f32;
  std::uint64_t seed = 0;             // of the initialisation
};

struct AttentionInput {
  ConstTensorView query;       // [.., T at axis, .., Eq]
  ConstTensorView key = {};    // [.., S at axis, .., Ek]; absent: query
  ConstTensorView value = {};  // [.., S at axis, .., Ev]; absent: key
  // Instead of key and value, for example from a cache: [*,K,S,H] and [*,K,S,V], already projected and, with rotary positions, rotated.
  ConstTensorView projected_key = {}, projected_value = {};
};

enum class Mode : std::uint8_t { evaluation, training };

struct AttentionOptions {
  // attend, block, bias and dropout_keep broadcast to [*,N,T,S]: each is [T,S] or has every dimension, of extent 1 where it is shared. With one
  // leading dimension [B,1,T,S] differs by sequence and [1,N,T,S] by head; three dimensions, which could mean either, are an Error.
  // attend_keys, block_keys: broadcast to [*,S]. key_lengths: [*] or [*,T]. Documents: not with added keys, nor with a global query.
  Mask mask{};
  ConstTensorView bias{};
  Mode mode = Mode::evaluation;
  std::optional<std::uint64_t> dropout_seed{};  // in training with dropout: required, unless dropout_keep is given
  ConstTensorView dropout_keep{};               // in training: the bits to use instead; S includes the keys that the layer adds
  Rotary rotary{};                              // of the projected q and k; not of projected_key, nor of the keys that the layer adds
  const Backend* backend = nullptr;
  Executor* executor = nullptr;
  const Workspace* workspace = nullptr;  // not one of Parameters::constant in training
};

struct MultiHeadAttention : Module<MultiHeadAttention> {
  MultiHeadAttentionConfig config;  // with every width filled in
  Linear q, k, v;                   // [N*H,Eq] [K*H,Ek] [K*V,Ev]
  Linear output;                    // [Eo,N*V], unless OutputProjection::none
  Linear gate;                      // [N*V,Eq], unless Gate::none
  Tensor bias_k, bias_v;            // [1,1,K*H] [1,1,K*V], with add_bias_kv

  MultiHeadAttention() = default;
  // Initialised as torch.nn.MultiheadAttention: q, k, v Xavier uniform with zero biases, output uniform in +-1/sqrt(N*V) with zero bias; the gate
  // opens at sigmoid(1): zero weight, bias 1 (Jumper et al. 2021).
  explicit MultiHeadAttention(const MultiHeadAttentionConfig& config);

  Shape output_shape(const AttentionInput& input) const;
  Shape maps_shape(const AttentionInput& input) const;  // [*,N,T,S']

  // What a forward pass computes on the way to its output. S' = S + the keys that the layer adds.
  struct Activations {
    Tensor query_mean;                // [.., 1, .., Eq] of a global query
    Tensor mean_positions;            // bool [*,T]: the positions of a masked mean
    // Projected and rotated, in the order of the inputs: [.., T, .., N*H], [.., S', .., K*H], [.., S', .., K*V]. k and v are absent where
    // projected_key and projected_value are used in place.
    Tensor q, k, v;
    Tensor attended;                  // [.., T, .., N*V], merged heads before the gate
    Tensor lse;                       // [*,N,T]
    Tensor gate;                      // [.., T, .., N*V], after the sigmoid
    Tensor padded_mask, padded_bias;  // of S' keys
    ConstTensorView q_heads, k_heads, v_heads, attended_heads;  // [*,N,T,H] [*,K,S',H] [*,K,S',V] [*,N,T,V]: views of q, k, v, attended
    SdpaOptions sdpa;  // of the call of sdpa_forward, without the executor; mask and bias are views of the caller's memory or of padded_*

    Activations() = default;
    Activations(Activations&&) = default;
    Activations& operator=(Activations&&) = default;
  };

  // What backward and maps need of a forward pass. The activations are owned; until the last use the caller keeps the memory of the inputs,
  // of the mask, of the bias, of dropout_keep and of the rotary tables, which are held as views.
  struct Saved : Activations {
    AttentionInput input;
    ConstTensorView bias;              // as given to forward
    Rotary rotary;                     // as given to forward
    MultiHeadAttentionConfig config;   // of the layer
    bool constant_parameters = false;  // whether the workspace was one of Parameters::constant

    // For maps.h: attention_map(saved.maps(), out [*,N,T,S'], saved.sdpa).
    MapsInput maps() const { return {.q = q_heads, .k = k_heads}; }
  };

  // A view that is not given is not computed. Written, not accumulated; where inputs are shared (key = query) their gradients are summed in the
  // one given.
  struct Gradients {
    TensorView query = {}, key = {}, value = {};
    TensorView projected_key = {}, projected_value = {};
    TensorView bias = {};                      // of the shape of options.bias
    MultiHeadAttention* parameters = nullptr;  // zeros_like(layer)
  };

  void forward(const AttentionInput& input, TensorView out, const AttentionOptions& options = {}, Saved* saved = nullptr) const;
  // Everything is checked before anything is written; the gradients may share no memory with each other or with what was read. Error where
  // `saved` comes from a layer of another structure.
  void backward(const Saved& saved, ConstTensorView d_out, const Gradients& gradients, const RunOptions& options = {}) const;

  MultiHeadAttention zeros() const;

  template <class Self, class F>
  static void visit_parameters(Self& self, F& f) {
    visit_child("q", self.q, f);
    visit_child("k", self.k, f);
    visit_child("v", self.v, f);
    if (self.output.weight) visit_child("output", self.output, f);
    if (self.gate.weight) visit_child("gate", self.gate, f);
    if (self.bias_k) f("bias_k", self.bias_k);
    if (self.bias_v) f("bias_v", self.bias_v);
  }
};

// Completes a configuration (every 0 replaced by its default); Error where widths and heads do not fit.
MultiHeadAttentionConfig completed(const MultiHeadAttentionConfig& config);

// A layer around existing parameters, whose memory is kept (that of a mapped file, for example); their shapes must be those of the completed
// configuration.
MultiHeadAttention make_attention(const MultiHeadAttentionConfig& config, Linear q, Linear k, Linear v, Linear output = {}, Linear gate = {},
                                  Tensor bias_k = {}, Tensor bias_v = {});

}  // namespace polyhead::nn
