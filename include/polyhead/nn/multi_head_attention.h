// Multi-head attention as a layer: linear maps q, k, v -> heads -> sdpa -> merge -> gate -> output map (Vaswani et al. 2017, section 3.2.2; gate,
// pair bias and global attention as in Jumper et al. 2021, supplementary algorithms 7, 8 and 19). The common layers are configurations of this one:
// docs/adding.md and examples/ show which.
//
// Inputs have any number of dimensions, the last one being the width. Attention runs along one of the others, `axis`; the rest are leading
// dimensions, written * below in their own order. T queries, S keys, N heads, K key/value heads, H and V the widths of a head.
#pragma once

#include <cstdint>
#include <optional>

#include "polyhead/maps.h"
#include "polyhead/nn/linear.h"
#include "polyhead/sdpa.h"
#include "polyhead/workspace.h"

namespace polyhead::nn {

enum class OutputProjection : std::uint8_t { linear, none };
enum class Gate : std::uint8_t { none, sigmoid };

// Global attention: one query per sequence, the mean of the query inputs along the axis, against one key/value head. The mean before the
// linear map is the mean after it, but where a masked mean keeps no position: the query is then the map of 0, its bias. Without a gate the
// output has an extent of 1 along the axis; the gate spreads it over every position.
enum class GlobalQuery : std::uint8_t {
  off,
  mean,         // over all positions
  masked_mean,  // over the positions that attend_keys, block_keys or key_lengths keep; 0 where they keep none
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
  bool bias = true;                   // of the maps q, k and v
  bool output_bias = true;            // the gate always has one
  OutputProjection output = OutputProjection::linear;
  Gate gate = Gate::none;
  GlobalQuery global_query = GlobalQuery::off;
  int axis = -2;
  bool add_bias_kv = false;               // one learned key and value that every query may attend to, after the S keys
  bool add_zero_attn = false;              // one key and value of zeros, after those
  double dropout = 0;                 // on the probabilities, in training
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
};

enum class Mode : std::uint8_t { evaluation, training };

struct AttentionOptions {
  // attend, block: [T,S], [*,T,S] or [*,N,T,S]. attend_keys, block_keys: broadcast to [*,S]. key_lengths: [*] or [*,T].
  Mask mask{};
  ConstTensorView bias{};  // [T,S], [N,T,S] or [first of *,N,T,S]: leading dimensions are matched from the left, further ones share the bias
  Mode mode = Mode::evaluation;
  std::uint64_t dropout_seed = 0;      // in training
  ConstTensorView dropout_keep{};      // in training: bits to use instead, [*,N,T,S']; S' counts add_bias_kv and the zero key
  const Backend* backend = nullptr;
  Executor* executor = nullptr;
  const Workspace* workspace = nullptr;  // for what lies between the maps, forward and backward
};

struct MultiHeadAttention;

// What backward, maps and a step-by-step view need of a forward pass. Inputs, masks and bias are kept as views: the caller keeps their memory.
struct MultiHeadAttentionSaved {
  AttentionInput input;
  Tensor query_mean;      // [.., 1, .., Eq] of a global query
  Tensor mean_positions;  // bool [*,T]: what a masked mean counted
  Tensor q, k, v;         // projected, in the order of the inputs: [.., T, .., N*H], [.., S', .., K*H], [.., S', .., K*V]
  Tensor attended;        // [.., T, .., N*V], merged heads before the gate
  Tensor lse;             // [*,N,T]
  Tensor gate;            // [.., T, .., N*V], after the sigmoid
  Tensor padded_mask, padded_bias;  // with room for add_bias_kv and the zero key
  ConstTensorView bias;   // as given to forward
  std::optional<Workspace> workspace;  // likewise; backward takes its memory from there
  SdpaOptions sdpa;       // as given to sdpa_forward, without the executor: masks and bias as views that broadcast to [*,N,T,S']
  ConstTensorView q_heads, k_heads, v_heads, attended_heads;  // [*,N,T,H] [*,K,S',H] [*,K,S',V] [*,N,T,V]: the same memory as q, k, v, attended

  MultiHeadAttentionSaved() = default;
  MultiHeadAttentionSaved(MultiHeadAttentionSaved&&) = default;
  MultiHeadAttentionSaved& operator=(MultiHeadAttentionSaved&&) = default;

  // For maps.h: attention_map(saved.maps(), out [*,N,T,S'], saved.sdpa).
  MapsInput maps() const { return {.q = q_heads, .k = k_heads, .lse = lse}; }
};

// A view that is not given is not computed. Written, not accumulated; where inputs are shared (key = query) their gradients are summed in the one given.
struct MultiHeadAttentionGradients {
  TensorView query = {}, key = {}, value = {};
  TensorView bias = {};                       // exactly the shape of options.bias
  MultiHeadAttention* parameters = nullptr;   // zeros_like(layer)
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

  void forward(const AttentionInput& input, TensorView out, const AttentionOptions& options = {}, MultiHeadAttentionSaved* saved = nullptr) const;
  // Everything is checked before anything is written; the gradients may share no memory with each other or with what was read.
  void backward(const MultiHeadAttentionSaved& saved, ConstTensorView d_out, const MultiHeadAttentionGradients& gradients,
                Executor* executor = nullptr) const;

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

// A layer around existing parameters, which are kept as they are (a mapped file's, say); their shapes must be those of the completed configuration.
MultiHeadAttention make_attention(const MultiHeadAttentionConfig& config, Linear q, Linear k, Linear v, Linear output = {}, Linear gate = {},
                                  Tensor bias_k = {}, Tensor bias_v = {});

}  // namespace polyhead::nn
