// Decoders that predict the next token of a text: GPT-2, Llama, Mistral, Mixtral, Qwen, Gemma, Phi-3, GPT-NeoX and gpt-oss, read from a folder as the
// `transformers` package writes it. src/models/language_families.cc has a row for each family. Evaluation only.
//
//   const LanguageModel model = load_language_model("llama-3.2-1b");
//   for (std::int64_t id : model.generate(prompt, {.max_tokens = 64})) ...
//
// Letters: * any number of leading (batch) dimensions, B of them with a cache, T tokens, E width, N heads, K key/value heads, H width of a
// head, L layers, C tokens of the vocabulary.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "polyhead/maps.h"
#include "polyhead/nn/embedding.h"
#include "polyhead/nn/encoder_layer.h"
#include "polyhead/nn/rotary_embedding.h"
#include "polyhead/nn/stack_cache.h"

#pragma GCC visibility push(default)
namespace polyhead::models {

// Rotary positions of a model. With "dynamic" and "longrope", a text of more than `limit` tokens has other angles than shorter texts, at all of its tokens.
struct RotaryRule {
  nn::RotaryEmbeddingConfig embedding;  // the rotary embedding for texts of at most `limit` tokens
  std::int64_t limit = 0;               // 0: no limit
  double dynamic_factor = 0;            // longer texts have RotaryScaling::ntk, with the factor dynamic_factor length / limit - (dynamic_factor - 1); 0: they have long_factors
  std::vector<double> long_factors{};   // the factors of longrope for texts of more than `limit` tokens

  nn::RotaryEmbeddingConfig at(std::int64_t length) const;  // the rotary embedding for a text of `length` tokens
  bool same_angles(std::int64_t length, std::int64_t longer) const;
};

// The experts of a model, in layers that have them. The comments name the keys of config.json.
struct ExpertsConfig {
  std::int64_t count = 0;                // num_local_experts, num_experts
  std::int64_t chosen = 0;               // num_experts_per_tok
  std::int64_t hidden_width = 0;         // moe_intermediate_size: hidden width of each expert
  std::int64_t shared_hidden_width = 0;  // shared_expert_intermediate_size; 0: no shared expert
  bool normalise = true;                 // norm_topk_prob
  bool bias = false;                     // whether experts and router have biases
  std::optional<nn::ClampedGate> clamped_gate{};  // swiglu_alpha, swiglu_limit
  std::vector<bool> layers{};            // which layers have experts; empty: all. From decoder_sparse_step and mlp_only_layers
};

// Rules for generate() in addition to the logits. Read from generation_config.json or, if there is none, from config.json; eos_token_id is read from config.json
// also if generation_config.json lacks it.
struct AnswerRules {
  std::optional<std::int64_t> start_token{};  // decoder_start_token_id, else bos_token_id; not read by decoders without an encoder, whose caller gives a prompt
  std::vector<std::int64_t> end_tokens{};     // eos_token_id
  std::optional<std::int64_t> forced_first{};    // forced_bos_token_id: the token after the start token, unless the prompt has more than one token
  std::optional<std::int64_t> forced_last{};     // forced_eos_token_id: the last token that max_tokens allows
  std::vector<std::int64_t> suppressed{};        // suppress_tokens, and bad_words_ids of one token: never chosen
  std::vector<std::string> rules_not_followed{};  // rules by which transformers would choose other tokens, and which generate() does not follow: "num_beams = 4"
  std::vector<std::int64_t> suppressed_first{};  // begin_suppress_tokens: not chosen as the first token that is not forced
};

// The comments name the keys of config.json.
struct LanguageModelConfig {
  std::string family;            // model_type
  std::int64_t vocabulary = 0;   // C, vocab_size
  std::int64_t positions = 0;    // max_position_embeddings: with learned positions the maximum number of tokens of a text, else the length in training
  std::int64_t layers = 0;       // L, num_hidden_layers
  std::optional<ExpertsConfig> experts{};  // a mixture of experts in place of the feed-forward part
  bool sink = false;             // each head has a learned sink logit
  nn::LayerConfig layer{.seed = 0};  // settings of all layers: width, heads, kv_heads, head_width, hidden_width, norms, biases, activation, dtype
  double norm_weight_offset = 0;                     // RMSNorm::weight_offset of all norms; Gemma: 1
  double embedding_scale = 1;                        // factor of the embedded tokens
  std::optional<double> attention_scale{};           // query_pre_attn_scalar^(-1/2); absent: 1/sqrt(H)
  bool scale_by_layer = false;                       // scale_attn_by_inverse_layer_idx: layer i divides its scores by i + 1
  double attention_softcap = 0, logit_softcap = 0;   // attn_logit_softcapping, final_logit_softcapping; 0: none
  std::vector<std::int64_t> windows{};               // for each layer: the number of keys that a token attends to, itself included; 0: no limit
  std::optional<RotaryRule> rotary{}, local_rotary{};  // absent `rotary`: learned positions. local_rotary: for layers with a window, if their positions differ
  bool tied_output = false;                          // tie_word_embeddings: the output projection is the embedding
  AnswerRules answer{};

  nn::MultiHeadAttentionConfig attention(std::int64_t layer) const;  // settings of the attention of this layer
  std::optional<nn::MixtureOfExpertsConfig> mixture(std::int64_t layer) const;  // settings of a layer's mixture of experts; absent if the layer has none
};

struct LanguageLoadOptions {
  // Keys of config.json to skip. An unknown key that is not in this list is an Error, because it might change the results. A key is unknown if the family does
  // not read it and does not list it as a key without effect.
  std::vector<std::string> ignored_keys{};
};

// A value that is missing, of the wrong type, out of range or not supported is an Error that names the key. `path` may be the folder.
LanguageModelConfig read_language_config(const std::filesystem::path& path, const LanguageLoadOptions& options = {});
std::vector<std::string_view> language_families();  // the values of model_type that read_language_config() knows

struct LanguageInput {
  ConstTensorView ids;               // [*,T] int64 or int32, in [0, C); [B,T] with a cache: the next tokens of each sequence
  ConstTensorView attend_keys = {};  // [*,T] bool, false for padding; absent: all true. Error with a cache.
  ConstTensorView new_tokens = {};   // [B] integers in [0,T], with a cache: only the first new_tokens[b] tokens of row b are read; absent: all T
};

// Each output is optional and may have any floating dtype. Requesting one does not change the values of the others.
struct LanguageOutput {
  TensorView logits = {};       // [*,T,C]: logits of the token that follows each token
  TensorView next_logits = {};  // [*,C]: logits after the last token of each sequence. Error with attend_keys.
  TensorView hidden = {};       // [*,T,E]: hidden states after the final norm
  TensorView all_hidden = {};   // [L+1,*,T,E]: the embeddings, then each layer's output; the last one after the final norm, as in transformers
  TensorView attentions = {};   // [L,*,N,T,T]: the attention weights of each layer. Error with a cache, as for pooled, q, k and v
  TensorView pooled = {};       // [L,*,N,h,w]: the attention weights reduced to blocks, as attention_pooled_map() does. Error with a cache
  Pooling pooling = Pooling::largest;  // reduction of the blocks of `pooled`
  TensorView q = {}, k = {}, v = {};  // [L,*,N,T,H], [L,*,K,T,H], [L,*,K,T,H]: projected, q and k also normed and rotated
};

struct LanguageOptions {
  nn::EncoderCache* cache = nullptr;  // keys and values of earlier tokens; unchanged if the call throws
  const Backend* backend = nullptr;
  Executor* executor = nullptr;
  const Workspace* workspace = nullptr;  // a workspace of Parameters::constant also keeps packed parameters, which are as large as the model in float32
};

struct GenerateOptions {
  std::int64_t max_tokens = 0;              // maximum number of tokens of the answer; at least 1
  std::optional<double> temperature{};      // absent: the likeliest token is chosen; given: tokens are drawn as by nn::SamplingOptions, with top_k, top_p and seed
  std::int64_t top_k = 0;
  double top_p = 1;
  std::optional<std::uint64_t> seed{};      // required with a temperature; an Error without one
  std::vector<std::int64_t> stop_tokens{};  // further tokens that end the answer, besides config.answer.end_tokens; in [0, C)
  bool ignore_end = false;                  // continue after an end token of the config, of which a model may have none; stop_tokens still end the answer
  std::optional<DType> cache_dtype{};       // dtype of the cached keys and values, as KeyValueCacheConfig::dtype; absent: the model's
  // Called with each token as it is chosen; false ends the answer.
  std::function<bool(std::int64_t token)> on_token{};
  const Backend* backend = nullptr;
  Executor* executor = nullptr;
  const Workspace* workspace = nullptr;  // a workspace of Parameters::constant keeps packed parameters for the next answer. Absent: each call packs them.
};

struct LanguageModel : nn::Module<LanguageModel> {
  LanguageModelConfig config;
  nn::Embedding words;      // [C,E]
  nn::Embedding positions;  // [positions,E]; absent with rotary positions
  nn::Encoder stack;        // the layers, and the final norm
  nn::Linear output;        // [C,E]; absent with tied_output

  LanguageModel() = default;
  explicit LanguageModel(const LanguageModelConfig& config);  // random parameters from config.layer.seed

  void forward(const LanguageInput& input, const LanguageOutput& output, const LanguageOptions& options = {}) const;

  // attention_options() returns the options of a layer's attention for a text without a cache, with views of `tables`. The input of that attention is the
  // layer's normed hidden states.
  struct RotaryTables {
    std::optional<nn::RotaryTables> all, local;  // local: tables of layers with a window, if their positions differ. Both are absent with learned positions
  };
  RotaryTables rotary_tables(std::int64_t tokens) const;
  nn::AttentionOptions attention_options(std::int64_t layer, const RotaryTables& tables) const;
  nn::EncoderCache cache(const nn::EncoderCacheConfig& sizes) const { return {stack, sizes}; }
  // Returns the tokens that follow a prompt of at least one token. A stop token that ends the answer is included. Uses a cache; computes the whole text again
  // when its length changes the rotary angles (RotaryRule).
  std::vector<std::int64_t> generate(std::span<const std::int64_t> prompt, const GenerateOptions& options) const;

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("config", self.config...);
    f("words", self.words...);
    f("positions", self.positions...);
    f("stack", self.stack...);
    f("output", self.output...);
  }
};

// Returns the names of a layer's projections in a family's files: {{"q", "self_attn.q_proj"}, ...}. If one tensor holds several projections:
// "attn.c_attn q". Error if the family is not known.
std::map<std::string, std::string> language_attention_names(std::string_view family);

// Loads config.json and model.safetensors (or its shards). The parameters are views of the mapped file, in its dtype; only GPT-NeoX' q, k and v are
// copied, because its files store them head by head. A tensor that is missing, does not fit the config, or has no place in the model is an Error.
LanguageModel load_language_model(const std::filesystem::path& folder, const LanguageLoadOptions& options = {});

}  // namespace polyhead::models
#pragma GCC visibility pop
