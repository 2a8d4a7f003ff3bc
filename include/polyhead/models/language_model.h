// Decoders that predict the next token of a text: GPT-2, Llama, Mistral, Mixtral, Qwen, Gemma, Phi-3, GPT-NeoX and gpt-oss, read from folders that the
// `transformers` package wrote. src/models/language_families.cc has a row for each family. polyhead evaluates these models and does not train them.
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

// How a model rotates q and k by position. With "dynamic" and "longrope", a text of more than `limit` tokens has other rotary angles than a shorter text, from
// its first token on.
struct RotaryRule {
  nn::RotaryEmbeddingConfig embedding;  // frequencies of the rotary angles in texts of at most `limit` tokens
  std::int64_t limit = 0;               // 0: no limit
  // texts of more than `limit` tokens have RotaryScaling::ntk with the factor dynamic_factor length / limit - (dynamic_factor - 1); 0: they have long_factors
  double dynamic_factor = 0;
  std::vector<double> long_factors{};   // the factors that divide the frequencies in texts of more than `limit` tokens ("longrope")

  nn::RotaryEmbeddingConfig at(std::int64_t length) const;  // Returns the frequencies of the rotary angles in a text of `length` tokens.
  bool same_angles(std::int64_t length, std::int64_t longer) const;
};

// The experts of a model, in the layers that have a mixture of experts. A comment that is a single name is the key in config.json.
struct ExpertsConfig {
  std::int64_t count = 0;                // num_local_experts, num_experts
  std::int64_t chosen = 0;               // num_experts_per_tok
  std::int64_t hidden_width = 0;         // moe_intermediate_size: the hidden width of each expert
  std::int64_t shared_hidden_width = 0;  // shared_expert_intermediate_size; 0: no shared expert
  bool normalise = true;                 // norm_topk_prob
  bool bias = false;                     // true: experts and router have biases
  std::optional<nn::ClampedGate> clamped_gate{};  // swiglu_alpha, swiglu_limit
  std::vector<bool> layers{};            // for each layer, whether it has experts (from decoder_sparse_step and mlp_only_layers); empty: all layers have
};

// Rules for choosing tokens in generate(), in addition to the logits. They come from generation_config.json; if a folder lacks that file, from config.json. If
// generation_config.json has no eos_token_id, that key comes from config.json.
struct AnswerRules {
  // decoder_start_token_id, else bos_token_id: the first token of a target. A decoder without an encoder does not read it, because the caller gives a prompt.
  std::optional<std::int64_t> start_token{};
  std::vector<std::int64_t> end_tokens{};     // eos_token_id
  std::optional<std::int64_t> forced_first{};    // forced_bos_token_id: the token after the start token; not used if the prompt has more than one token
  std::optional<std::int64_t> forced_last{};     // forced_eos_token_id: the last token, if an answer reaches max_tokens
  std::vector<std::int64_t> suppressed{};        // suppress_tokens, and the bad_words_ids that are one token: these tokens are never chosen
  // Rules in the file that generate() does not follow, and by which transformers would choose other tokens: "num_beams = 4".
  std::vector<std::string> rules_not_followed{};
  std::vector<std::int64_t> suppressed_first{};  // begin_suppress_tokens: these tokens are not chosen as the first token that no rule forces
};

// The sizes and settings of a decoder. A comment that is a single name is the key in config.json.
struct LanguageModelConfig {
  std::string family;            // model_type
  std::int64_t vocabulary = 0;   // C, vocab_size
  std::int64_t positions = 0;    // max_position_embeddings: the maximum number of tokens of a text; with rotary positions, the number in training
  std::int64_t layers = 0;       // L, num_hidden_layers
  std::optional<ExpertsConfig> experts{};  // the mixture of experts that some layers have in place of the feed-forward network
  bool sink = false;             // true: each head has a learned sink logit
  nn::LayerConfig layer{.seed = 0};  // the settings of all layers: width, heads, kv_heads, head_width, hidden_width, norms, biases, activation, dtype
  double norm_weight_offset = 0;                     // RMSNorm::weight_offset of all norms; 1 in Gemma
  double embedding_scale = 1;                        // a factor by which the embedded tokens are multiplied
  std::optional<double> attention_scale{};           // the factor of the scores, query_pre_attn_scalar^(-1/2); absent: 1/sqrt(H)
  bool scale_by_layer = false;                       // scale_attn_by_inverse_layer_idx: layer i, counted from 0, divides its scores by i + 1
  double attention_softcap = 0, logit_softcap = 0;   // attn_logit_softcapping, final_logit_softcapping; 0: none
  std::vector<std::int64_t> windows{};               // for each layer the number of keys that a token attends to, with itself; 0: no limit
  // rotary positions; without `rotary` the model has learned positions. local_rotary: positions of the layers with a window, if they differ from `rotary`
  std::optional<RotaryRule> rotary{}, local_rotary{};
  bool tied_output = false;                          // tie_word_embeddings: the output projection has the embedding's parameters
  AnswerRules answer{};

  nn::MultiHeadAttentionConfig attention(std::int64_t layer) const;  // Returns the settings of a layer's attention.
  // Returns the settings of a layer's mixture of experts; absent if the layer has none.
  std::optional<nn::MixtureOfExpertsConfig> mixture(std::int64_t layer) const;
};

struct LanguageLoadOptions {
  // Keys of config.json that are ignored. Any other unknown key is an Error, because it might change the results. A key is unknown if the family neither reads
  // it nor lists it as a key without effect.
  std::vector<std::string> ignored_keys{};
};

// Reads config.json; `path` is the file or its folder. A value that is missing, of the wrong type, out of range or not supported is an Error that names the
// key.
LanguageModelConfig read_language_config(const std::filesystem::path& path, const LanguageLoadOptions& options = {});
std::vector<std::string_view> language_families();  // Returns the families that read_language_config() knows: the values of model_type.

struct LanguageInput {
  ConstTensorView ids;               // token ids: [*,T] int64 or int32, in [0, C). With a cache [B,T]: the next tokens of each sequence
  ConstTensorView attend_keys = {};  // [*,T] bool, false for padding; absent: no padding. Error with a cache.
  ConstTensorView new_tokens = {};   // Only with a cache: [B] integers in [0,T]. Of row b only the first new_tokens[b] tokens are read; absent: all T.
};

// Results of a decoder. Each output is optional and may have any floating dtype. Requesting one does not change the values of the others.
struct LanguageOutput {
  TensorView logits = {};       // [*,T,C]: for each token, the logits of the token that follows it
  TensorView next_logits = {};  // [*,C]: the logits of the token that follows each sequence. Error with attend_keys.
  TensorView hidden = {};       // [*,T,E]: hidden states after the final norm
  TensorView all_hidden = {};   // [L+1,*,T,E]: the embeddings, then each layer's output. As in transformers, the last one is normalised by the final norm.
  TensorView attentions = {};   // [L,*,N,T,T]: the attention weights of each layer. attentions, pooled, q, k and v are an Error with a cache.
  TensorView pooled = {};       // [L,*,N,h,w]: the attention weights, reduced to blocks by attention_pooled_map()
  Pooling pooling = Pooling::largest;  // how `pooled` reduces a block of attention weights
  // q [L,*,N,T,H], k and v [L,*,K,T,H]: the projected queries, keys and values; q and k after their norms and the rotation, if the model has them
  TensorView q = {}, k = {}, v = {};
};

struct LanguageOptions {
  nn::EncoderCache* cache = nullptr;  // holds the keys and values of earlier tokens; it is unchanged if the call throws
  const Backend* backend = nullptr;
  Executor* executor = nullptr;
  // a Workspace with Parameters::constant also keeps packed parameters, which take as much memory as the model in float32
  const Workspace* workspace = nullptr;
};

struct GenerateOptions {
  std::int64_t max_tokens = 0;              // maximum number of tokens of the answer; at least 1
  // absent: the likeliest token is chosen. Given: tokens are drawn as nn::SamplingOptions describes, with top_k, top_p and seed.
  std::optional<double> temperature{};
  std::int64_t top_k = 0;
  double top_p = 1;
  std::optional<std::uint64_t> seed{};      // required with a temperature; an Error without one
  std::vector<std::int64_t> stop_tokens{};  // tokens that end the answer, in addition to config.answer.end_tokens; in [0, C)
  bool ignore_end = false;                  // true: the end tokens of the config, of which a model may have none, do not end the answer; stop_tokens do
  std::optional<DType> cache_dtype{};       // dtype of the cached keys and values (KeyValueCacheConfig::dtype); absent: the model's dtype
  // Called with each token when it is chosen. Returning false ends the answer.
  std::function<bool(std::int64_t token)> on_token{};
  const Backend* backend = nullptr;
  Executor* executor = nullptr;
  // A Workspace with Parameters::constant keeps packed parameters for the next answer. Without a workspace, each call packs them.
  const Workspace* workspace = nullptr;
};

struct LanguageModel : nn::Module<LanguageModel> {
  LanguageModelConfig config;
  nn::Embedding words;      // [C,E]
  nn::Embedding positions;  // [positions,E]; absent if the model has rotary positions
  nn::Encoder stack;        // all layers, and the final norm
  nn::Linear output;        // [C,E]; absent if config.tied_output is true

  LanguageModel() = default;
  explicit LanguageModel(const LanguageModelConfig& config);  // draws random parameters with config.layer.seed

  void forward(const LanguageInput& input, const LanguageOutput& output, const LanguageOptions& options = {}) const;

  // A layer's attention can be computed again for a text without a cache: attention_options() returns its options, with views of `tables`; its input is the
  // layer's normalised hidden states.
  struct RotaryTables {
    // `local` is for the layers with a window, if their positions differ from `all`. With learned positions neither is given.
    std::optional<nn::RotaryTables> all, local;
  };
  RotaryTables rotary_tables(std::int64_t tokens) const;
  nn::AttentionOptions attention_options(std::int64_t layer, const RotaryTables& tables) const;
  nn::EncoderCache cache(const nn::EncoderCacheConfig& sizes) const { return {stack, sizes}; }
  // Returns the tokens that follow a prompt of at least one token. A stop token that ends the answer is part of it. generate() uses a cache; it computes the
  // whole text again when its length changes the rotary angles (RotaryRule).
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

// Returns the names of a layer's projections in a family's files: {{"q", "self_attn.q_proj"}, ...}. If one tensor holds several projections, the name also says
// which one: "attn.c_attn q". Error if the family is not known.
std::map<std::string, std::string> language_attention_names(std::string_view family);

// Loads a decoder from config.json and model.safetensors (one file or several with an index). The parameters are views of the mapped file, in its dtype; only
// the q, k and v of GPT-NeoX are copied, because its files store them head by head. A tensor that is missing, does not fit the config, or has no place in the
// model is an Error.
LanguageModel load_language_model(const std::filesystem::path& folder, const LanguageLoadOptions& options = {});

}  // namespace polyhead::models
#pragma GCC visibility pop
