// The decoder families as data: how each names its keys in config.json and its tensors, and which parts it has.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "polyhead/nn/residual.h"

namespace polyhead::models {

// Keys of config.json. Empty: the family does not have this key.
struct FamilyKeys {
  std::string_view width = "hidden_size", layers = "num_hidden_layers", heads = "num_attention_heads", kv_heads = "num_key_value_heads", head_width = "head_dim",
                   hidden_width = "intermediate_size", positions = "max_position_embeddings", activation = "hidden_act", epsilon = "rms_norm_eps";
  // Older names of rope_theta and partial_rotary_factor.
  std::string_view rotary_base = "", rotary_part = "";
  // transformers 4 reads this key, transformers 5 reads `activation`; so their values must mean the same.
  std::string_view second_activation = "";
  // Keys that published folders of this family contain and that transformers does not read.
  std::span<const std::string_view> without_effect{};
};

// Names of tensors without ".weight" and ".bias". The names in a layer follow `layer` and the layer's number. Empty: the family has no such tensor.
struct FamilyTensors {
  std::string_view prefix = "model.";  // precedes all names except that of the output projection; a file of the model without its output projection has no prefix
  std::string_view words = "embed_tokens", positions = "", final_norm = "norm", output = "lm_head", layer = "layers.";
  std::string_view attention_norm = "input_layernorm", attention_output_norm = "", feed_forward_norm = "post_attention_layernorm", feed_forward_output_norm = "";
  std::string_view q = "self_attn.q_proj", k = "self_attn.k_proj", v = "self_attn.v_proj";  // if k and v are empty, q holds all of q, then k, then v
  std::string_view attention_output = "self_attn.o_proj", q_norm = "", k_norm = "", sink = "";
  std::string_view gate = "mlp.gate_proj", hidden = "mlp.up_proj", feed_forward_output = "mlp.down_proj";  // if hidden is empty, gate holds both layers
};

// A mixture of experts in place of the feed-forward part: first the keys of config.json that describe it, then the names of its tensors, written as in FamilyTensors.
struct FamilyExperts {
  std::string_view count = "", chosen = "num_experts_per_tok", hidden_width = "";  // if count is empty, the family has no experts
  std::string_view second_count = "";         // another name of count, which transformers 5 writes
  std::string_view shared_hidden_width = "";  // empty: the family has no shared expert
  bool some_layers = false;                   // decoder_sparse_step and mlp_only_layers say which layers have experts
  bool normalise_key = false;                 // true: norm_topk_prob (if missing, false) says whether the probabilities of the chosen experts are divided by their sum; if normalise_key is false, they always are
  bool clamped = false;                       // reads swiglu_alpha and swiglu_limit
  std::string_view router = "mlp.gate", expert = "mlp.experts.", gate = "gate_proj", hidden = "up_proj", output = "down_proj";  // names of an expert's layers: `expert`, its number, ".", then gate, hidden or output
  std::string_view shared = "mlp.shared_expert.", shared_gate = "mlp.shared_expert_gate";
  // Names of tensors that hold all experts: weights [experts,in,out] and biases [experts,out]. In the input tensor, columns of gate and hidden alternate.
  std::string_view packed_input = "", packed_output = "";
};

enum class HasBias : std::uint8_t {
  no,
  yes,
  by_attention_bias,  // the key "attention_bias"
  by_mlp_bias,        // the key "mlp_bias"
};

// Which layers have a window of `sliding_window` keys, unless layer_types says so.
enum class Windows : std::uint8_t {
  none,             // no layer: the family reads no sliding_window
  all,              // all layers, if sliding_window is not null
  every_other,      // layers 0, 2, 4, ...
  all_but_every_nth,  // all layers i, except if i + 1 is a multiple of sliding_window_pattern
  last_ones,        // layers from max_window_layers on, if use_sliding_window is true
  unused,           // use_sliding_window must be false
};

// Values of missing keys. 0 and "": the key is required.
struct FamilyDefaults {
  std::string_view activation = "silu";
  double epsilon = 1e-6;
  bool tied_output = false;
  double rotary_part = 1;       // partial_rotary_factor: the share of a head's features that is rotated
  // true: a missing key means kv_heads = heads, or head_width = width / heads; false: the key is required
  bool kv_heads_as_heads = false, head_width_of_heads = false;
  double rotary_base = 10000;
  bool no_window = false;       // sliding_window may be missing
  bool attention_bias = false;
  bool caps_required = false;   // the caps of scores and logits may not be missing
  bool rope_required = false;   // rope_parameters or rope_scaling may not be missing
  std::int64_t hidden_per_width = 0;  // hidden_width / width
};

struct Family {
  std::string_view model_type;
  FamilyKeys keys{};
  FamilyTensors tensors{};
  FamilyDefaults defaults{};
  FamilyExperts experts{};
  nn::NormKind norm = nn::NormKind::rms_norm;
  nn::NormPosition norm_position = nn::NormPosition::pre;
  HasBias bias = HasBias::no, output_bias = HasBias::no, feed_forward_bias = HasBias::no;
  Windows windows = Windows::none;
  bool transposed = false;      // the layers' linear weights are stored [in,out]
  bool packed_by_head = false;  // the tensor of q, k and v has q, k and v of head 0, then of head 1, ...
  bool qkv_bias_key = false;    // the key qkv_bias (default: true) tells whether q, k and v have biases; the key that belongs to `bias` is not read
  bool parallel_key = false;    // reads use_parallel_residual, by default true
  bool gemma = false;           // norms store weight - 1, embedded tokens are multiplied by sqrt(E)
  bool gelu_is_tanh = false;    // "gelu" means its tanh form
  bool gemma_scores = false;    // reads query_pre_attn_scalar and the softcaps
  bool scores_uncapped = false;  // attn_logit_softcapping must be null
  bool local_rotary = false;    // layers with a window use their own rotary angles
  bool gpt2_scores = false;     // reads scale_attn_weights and scale_attn_by_inverse_layer_idx
  bool partial_rotary = false;  // the model may rotate only a part of a head's features
  bool longrope_original = false;  // original_max_position_embeddings is not inside rope_scaling, whose types "su" and "yarn" mean longrope
};

std::span<const Family> families();
// Returns the row of the table for a family. If the family is not known, the Error lists the known ones and names the nearest.
const Family& find_family(std::string_view file, std::string_view model_type);

// Returns whether a key of config.json changes no result of an evaluation, in any family.
bool is_without_effect(std::string_view key);
// Returns the value, as JSON text, with which a key has no effect; empty if the key is unknown.
std::string_view neutral_value(std::string_view key);

}  // namespace polyhead::models
