#include "models/language_families.h"

#include <algorithm>
#include <array>

#include "core/join.h"
#include "core/text.h"
#include "models/family_table.h"
#include "polyhead/models/language_model.h"

namespace polyhead::models {
namespace {

// "hidden_act" and "sliding_window_size" are older names of "hidden_activation" and "sliding_window". transformers does not read the older names.
constexpr std::string_view kUnusedInGemma2[] = {"hidden_act", "sliding_window_size"};

// "experts_per_token" and "initial_context_length" are other names of num_experts_per_tok and original_max_position_embeddings. transformers does not read
// these other names.
constexpr std::string_view kUnusedInGptOss[] = {"experts_per_token", "initial_context_length"};

// A new family needs a row here and a test in tests/python/test_language_models.py.
constexpr std::array kLanguageFamilies{
    Family{.model_type = "gpt2",
           .keys = {.width = "n_embd", .layers = "n_layer", .heads = "n_head", .kv_heads = "", .head_width = "", .hidden_width = "n_inner", .positions = "n_positions",
                    .activation = "activation_function", .epsilon = "layer_norm_epsilon"},
           .tensors = {.prefix = "transformer.", .words = "wte", .positions = "wpe", .final_norm = "ln_f", .layer = "h.", .attention_norm = "ln_1", .feed_forward_norm = "ln_2",
                       .q = "attn.c_attn", .k = "", .v = "", .attention_output = "attn.c_proj", .gate = "", .hidden = "mlp.c_fc", .feed_forward_output = "mlp.c_proj"},
           .defaults = {.activation = "gelu_new", .epsilon = 1e-5, .tied_output = true, .kv_heads_as_heads = true, .head_width_of_heads = true, .hidden_per_width = 4},
           .norm = nn::NormKind::layer_norm,
           .bias = HasBias::yes,
           .output_bias = HasBias::yes,
           .feed_forward_bias = HasBias::yes,
           .transposed = true,
           .gpt2_scores = true},
    Family{.model_type = "llama",
           .defaults = {.kv_heads_as_heads = true, .head_width_of_heads = true},
           .bias = HasBias::by_attention_bias,
           .output_bias = HasBias::by_attention_bias,
           .feed_forward_bias = HasBias::by_mlp_bias},
    Family{.model_type = "mistral", .defaults = {.head_width_of_heads = true}, .windows = Windows::all},
    Family{.model_type = "mixtral",
           .defaults = {.epsilon = 1e-5, .kv_heads_as_heads = true, .head_width_of_heads = true, .rotary_base = 1'000'000, .no_window = true},
           .experts = {.count = "num_local_experts", .hidden_width = "intermediate_size", .router = "block_sparse_moe.gate", .expert = "block_sparse_moe.experts.", .gate = "w1", .hidden = "w3", .output = "w2"},
           .windows = Windows::all},
    Family{.model_type = "qwen2", .defaults = {.head_width_of_heads = true}, .bias = HasBias::yes, .windows = Windows::last_ones},
    Family{.model_type = "qwen3",
           .tensors = {.q_norm = "self_attn.q_norm", .k_norm = "self_attn.k_norm"},
           .bias = HasBias::by_attention_bias,
           .output_bias = HasBias::by_attention_bias,
           .windows = Windows::last_ones},
    Family{.model_type = "qwen2_moe",
           .defaults = {.kv_heads_as_heads = true, .head_width_of_heads = true},
           .experts = {.count = "num_experts", .hidden_width = "moe_intermediate_size", .shared_hidden_width = "shared_expert_intermediate_size", .some_layers = true, .normalise_key = true},
           .windows = Windows::unused,
           .qkv_bias_key = true},
    Family{.model_type = "qwen3_moe",
           .tensors = {.q_norm = "self_attn.q_norm", .k_norm = "self_attn.k_norm"},
           .defaults = {.head_width_of_heads = true},
           .experts = {.count = "num_experts", .hidden_width = "moe_intermediate_size", .second_count = "num_local_experts", .some_layers = true, .normalise_key = true},
           .bias = HasBias::by_attention_bias,
           .output_bias = HasBias::by_attention_bias,
           .windows = Windows::unused},
    Family{.model_type = "gemma",
           .keys = {.second_activation = "hidden_activation"},
           .defaults = {.activation = "gelu_pytorch_tanh", .tied_output = true},
           .bias = HasBias::by_attention_bias,
           .output_bias = HasBias::by_attention_bias,
           .gemma = true,
           .gelu_is_tanh = true},
    Family{.model_type = "gemma2",
           .keys = {.activation = "hidden_activation", .without_effect = kUnusedInGemma2},
           .tensors = {.attention_output_norm = "post_attention_layernorm", .feed_forward_norm = "pre_feedforward_layernorm", .feed_forward_output_norm = "post_feedforward_layernorm"},
           .defaults = {.activation = "gelu_pytorch_tanh", .tied_output = true, .caps_required = true},
           .norm_position = nn::NormPosition::both,
           .bias = HasBias::by_attention_bias,
           .output_bias = HasBias::by_attention_bias,
           .windows = Windows::every_other,
           .gemma = true,
           .gemma_scores = true},
    Family{.model_type = "gemma3_text",
           .keys = {.activation = "hidden_activation", .without_effect = kUnusedInGemma2},
           .tensors = {.attention_output_norm = "post_attention_layernorm", .feed_forward_norm = "pre_feedforward_layernorm", .feed_forward_output_norm = "post_feedforward_layernorm",
                       .q_norm = "self_attn.q_norm", .k_norm = "self_attn.k_norm"},
           .defaults = {.activation = "gelu_pytorch_tanh", .tied_output = true, .rotary_base = 1'000'000},
           .norm_position = nn::NormPosition::both,
           .bias = HasBias::by_attention_bias,
           .output_bias = HasBias::by_attention_bias,
           .windows = Windows::all_but_every_nth,
           .gemma = true,
           .gemma_scores = true,
           .scores_uncapped = true,
           .local_rotary = true},
    Family{.model_type = "phi3",
           .tensors = {.q = "self_attn.qkv_proj", .k = "", .v = "", .gate = "mlp.gate_up_proj", .hidden = ""},
           .defaults = {.epsilon = 1e-5, .kv_heads_as_heads = true, .head_width_of_heads = true, .no_window = true},
           .windows = Windows::all,
           .partial_rotary = true,
           .longrope_original = true},
    Family{.model_type = "gpt_neox",
           .keys = {.kv_heads = "", .head_width = "", .epsilon = "layer_norm_eps", .rotary_base = "rotary_emb_base", .rotary_part = "rotary_pct"},
           .tensors = {.prefix = "gpt_neox.", .words = "embed_in", .final_norm = "final_layer_norm", .output = "embed_out", .q = "attention.query_key_value", .k = "", .v = "",
                       .attention_output = "attention.dense", .gate = "", .hidden = "mlp.dense_h_to_4h", .feed_forward_output = "mlp.dense_4h_to_h"},
           .defaults = {.activation = "gelu", .epsilon = 1e-5, .rotary_part = 0.25, .kv_heads_as_heads = true, .head_width_of_heads = true, .attention_bias = true},
           .norm = nn::NormKind::layer_norm,
           .bias = HasBias::by_attention_bias,
           .output_bias = HasBias::by_attention_bias,
           .feed_forward_bias = HasBias::yes,
           .packed_by_head = true,
           .parallel_key = true,
           .partial_rotary = true},
    Family{.model_type = "gpt_oss",
           .keys = {.without_effect = kUnusedInGptOss},
           .tensors = {.sink = "self_attn.sinks"},
           .defaults = {.epsilon = 1e-5, .rotary_base = 150'000, .attention_bias = true, .rope_required = true},
           .experts = {.count = "num_local_experts", .hidden_width = "intermediate_size", .clamped = true, .router = "mlp.router", .packed_input = "mlp.experts.gate_up_proj", .packed_output = "mlp.experts.down_proj"},
           .bias = HasBias::by_attention_bias,
           .output_bias = HasBias::by_attention_bias,
           .windows = Windows::every_other},
};

// Keys of config.json that change no result of polyhead, in any family. transformers has most of them, for training, for its bookkeeping, for the choice of
// tokens in its generate(), and for model classes with another output layer, such as classifiers.
constexpr std::string_view kWithoutEffect[] = {
    "_attn_implementation", "_attn_implementation_autoset", "_attn_implementation_internal", "_commit_hash", "_name_or_path", "architectures", "attention_dropout",
    "attn_implementation", "attn_pdrop", "auto_map", "bad_words_ids", "begin_suppress_tokens", "bos_token_id", "cache_implementation", "chunk_size_feed_forward",
    "classifier_dropout", "cross_attention_hidden_size", "decoder_start_token_id", "diversity_penalty", "do_sample", "dtype", "early_stopping", "embd_pdrop",
    "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id", "forced_eos_token_id", "gradient_checkpointing",
    "hidden_dropout", "hidden_dropout_prob", "id2label", "initializer_range", "is_composition", "is_decoder", "is_encoder_decoder", "keys_to_ignore_at_inference",
    "label2id", "length_penalty", "max_length", "min_length", "model_type", "n_ctx", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences",
    "output_attentions", "output_hidden_states", "output_router_logits", "output_scores", "pad_token_id", "prefix", "pretraining_tp", "problem_type",
    "remove_invalid_values", "reorder_and_upcast_attn", "repetition_penalty", "resid_pdrop", "return_dict", "return_dict_in_generate", "router_aux_loss_coef", "router_jitter_noise", "sep_token_id",
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj", "suppress_tokens", "task_specific_params", "temperature",
    "tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript", "transformers.js_config", "transformers_version",
    "typical_p", "unsloth_fixed", "unsloth_version", "use_bfloat16", "use_cache", "use_return_dict"};

// A key that only some families read. The config of another family may hold the key with the value that switches it off.
struct Neutral {
  std::string_view key, value;
};
constexpr Neutral kNeutral[] = {
    {"add_cross_attention", "false"}, {"attention_bias", "false"}, {"mlp_bias", "false"}, {"lm_head_bias", "false"}, {"use_mrope", "false"}, {"use_sliding_window", "false"},
    {"use_bidirectional_attention", "false"}, {"full_attn_mod", "1"}, {"interpolate_factor", "1"}, {"pruned_heads", "{}"}, {"partial_rotary_factor", "1"}, {"rope_interleaved", "false"},
};

}  // namespace

std::span<const Family> families() { return kLanguageFamilies; }

const Family& find_family(std::string_view file, std::string_view model_type) {
  if (const Family* found = find_row(kLanguageFamilies, model_type)) return *found;
  fail(ErrorCode::unsupported, file, ": model_type is '", model_type, "'; known are ", join(kLanguageFamilies, &Family::model_type), "; the nearest is '",
       nearest_name(kLanguageFamilies, &Family::model_type, model_type), "'");
}

bool is_without_effect(std::string_view key) { return std::ranges::find(kWithoutEffect, key) != std::end(kWithoutEffect); }

std::string_view neutral_value(std::string_view key) {
  const auto found = std::ranges::find(kNeutral, key, &Neutral::key);
  return found == std::end(kNeutral) ? std::string_view() : found->value;
}

std::vector<std::string_view> language_families() { return model_types(kLanguageFamilies); }

}  // namespace polyhead::models
