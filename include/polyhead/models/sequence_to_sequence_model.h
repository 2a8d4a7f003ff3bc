// Models with an encoder that reads a source and a decoder that writes a target: T5, mT5, BART, mBART, Marian, Pegasus, Blenderbot and Whisper, read from
// folders that the `transformers` package wrote. src/models/sequence_families.cc has a row for each family. polyhead evaluates these models and does not train
// them.
//
//   const SequenceToSequenceModel model = load_sequence_to_sequence_model("flan-t5-small");
//   for (std::int64_t id : model.generate(source, {.max_tokens = 64})) ...
//   whisper.generate({.features = mel}, {.max_tokens = 64}, prompt)
//
// Letters: * any number of leading (batch) dimensions, B of them with a cache, S tokens of the source, T of the target, E width, N heads, C tokens of a
// vocabulary, Le and Ld layers of the encoder and of the decoder. The memory is the output of the encoder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "polyhead/models/language_model.h"
#include "polyhead/nn/decoder_layer.h"
#include "polyhead/nn/embedding.h"
#include "polyhead/nn/stack_cache.h"
#include "polyhead/relative_bias.h"

#pragma GCC visibility push(default)
namespace polyhead::models {

// The sizes and settings of the model. A comment that is a single name is the key in config.json; where families differ, it is the key of BART.
struct SequenceToSequenceConfig {
  std::string family;                   // model_type
  // M, num_mel_bins: the source is sound, given as features [M,2 S]; two convolutions turn them into S positions. 0: the source is tokens.
  std::int64_t features = 0;
  std::int64_t vocabulary = 0;          // vocab_size: the number of tokens in the source's vocabulary
  std::int64_t target_vocabulary = 0;   // C of the target: vocab_size, or decoder_vocab_size if source and target have different embeddings
  std::int64_t source_positions = 0, target_positions = 0;  // max_position_embeddings: maximum number of tokens of a text; 0: no limit
  std::int64_t position_offset = 0;     // number of rows of the tables of learned positions before the row of position 0
  std::int64_t encoder_layers = 0, decoder_layers = 0;
  nn::LayerConfig encoder{.seed = 0};  // the settings of all encoder layers: width, heads, head_width, hidden_width, norms, biases, activation, dtype
  nn::LayerConfig decoder{.seed = 0};
  double embedding_scale = 1;           // a factor by which the embedded tokens are multiplied: sqrt(E) with scale_embedding
  bool embedding_norm = false;          // true: a norm follows the sum of embedded tokens and positions
  std::optional<double> attention_scale{};  // absent: 1/sqrt(H)
  std::int64_t buckets = 0;             // relative_attention_num_buckets: the self-attention has a bias for each bucket of distances; 0: it has no bias
  std::int64_t max_distance = 128;      // relative_attention_max_distance
  double output_scale = 1;              // a factor by which the decoder's hidden states are multiplied before the output projection
  bool shared_embedding = true;         // share_encoder_decoder_embeddings: source and target have the same embedding
  bool tied_output = true;              // true: the output projection has the parameters of the target's embedding
  AnswerRules answer;
};

// Throws the Errors of read_language_config().
SequenceToSequenceConfig read_sequence_to_sequence_config(const std::filesystem::path& path, const LanguageLoadOptions& options = {});
std::vector<std::string_view> sequence_to_sequence_families();  // Returns the families that read_sequence_to_sequence_config() knows: the values of model_type.

struct SourceInput {
  ConstTensorView ids{};          // token ids of the source: [*,S] int64 or int32, in [0, C); absent if `features` are given
  ConstTensorView features{};     // [*,M,2 S] floating, S = config.source_positions: sound, for a model that reads sound. attend_keys is not used then.
  ConstTensorView attend_keys{};  // [*,S] bool, false for padding; absent: no padding
};

// Results of the encoder. Each output is optional and may have any floating dtype; requesting one does not change the others.
struct SourceOutput {
  TensorView memory = {};      // [*,S,E]: the encoder's output, after the final norm if the model has one
  TensorView all_hidden = {};  // [Le+1,*,S,E]: the embeddings, then each layer's output; the last one is the memory
  TensorView attentions = {};  // [Le,*,N,S,S]
};

struct TargetInput {
  ConstTensorView ids{};           // token ids of the target: [*,T]. With a cache [B,T]: the next tokens of each sequence
  ConstTensorView attend_keys{};   // [*,T] bool, false for padding. Error with a cache.
  ConstTensorView memory{};        // [*,S,E], of the parameters' dtype: the encoder's output; absent with a cache, which holds it
  ConstTensorView attend_memory{};  // [*,S] bool: the attend_keys of the source; absent with a cache, which holds this mask
};

struct TargetOutput {
  TensorView logits = {};       // [*,T,C]: for each token, the logits of the token that follows it
  TensorView next_logits = {};  // [*,C]: the logits of the token that follows each sequence. Error with attend_keys.
  TensorView hidden = {};       // [*,T,E]: the hidden states after the final norm, if the model has one
  // [Ld+1,*,T,E]: the embeddings, then each layer's output. all_hidden, attentions and cross_attentions are an Error with a cache.
  TensorView all_hidden = {};
  TensorView attentions = {};        // [Ld,*,N,T,T]: the attention weights of the decoder to its own tokens
  TensorView cross_attentions = {};  // [Ld,*,N,T,S]: the attention weights of the decoder to the memory
};

struct SequenceToSequenceOptions {
  nn::DecoderCache* cache = nullptr;  // for decode(): holds the memory, and the keys and values of earlier tokens; it is unchanged if the call throws
  const Backend* backend = nullptr;
  Executor* executor = nullptr;
  const Workspace* workspace = nullptr;  // see LanguageOptions::workspace
};

struct SequenceToSequenceModel : nn::Module<SequenceToSequenceModel> {
  SequenceToSequenceConfig config;
  // [E,3 M] and [E,3 E]: kernels over three neighbouring positions; convolution2 has stride 2. Absent if config.features is 0.
  nn::Linear convolution1, convolution2;
  nn::Embedding source_embedding;  // [C,E]; absent if the source is sound
  nn::Embedding target_embedding;  // [C,E]; absent if config.shared_embedding is true
  nn::Embedding source_positions, target_positions;  // [position_offset + positions,E]; absent if the model has biases by distance instead
  nn::Norm source_norm, target_norm;  // norms of the embedded tokens; absent if config.embedding_norm is false
  Tensor encoder_bias, decoder_bias;  // [buckets,N]: the biases of the self-attention by distance, in all layers; absent if config.buckets is 0
  nn::Encoder encoder;
  nn::Decoder decoder;
  nn::Linear output;   // [C,E]; its weight is absent if config.tied_output is true
  Tensor output_bias;  // [C], final_logits_bias: added to the logits; absent: not added

  SequenceToSequenceModel() = default;
  explicit SequenceToSequenceModel(const SequenceToSequenceConfig& config);  // draws random parameters with config.encoder.seed

  void encode(const SourceInput& input, const SourceOutput& output, const SequenceToSequenceOptions& options = {}) const;
  void decode(const TargetInput& input, const TargetOutput& output, const SequenceToSequenceOptions& options = {}) const;
  // Makes a cache for decode(). memory is [B,S,E], attend_memory is [B,S] bool or absent. The cache has room for `capacity` tokens of each target.
  nn::DecoderCache cache(ConstTensorView memory, std::int64_t capacity, ConstTensorView attend_memory = {}, std::optional<DType> dtype = {}, const nn::RunOptions& options = {}) const;

  // Returns the target of one source, which is ids [S] or features [M,2 S]. The target is the tokens after the start token; it includes the end token if the
  // model chose one. `prompt` holds the first tokens of the target, which are not returned; an empty prompt means config.answer.start_token.
  std::vector<std::int64_t> generate(const SourceInput& source, const GenerateOptions& options, std::span<const std::int64_t> prompt = {}) const;
  std::vector<std::int64_t> generate(std::span<const std::int64_t> source, const GenerateOptions& options, std::span<const std::int64_t> prompt = {}) const {
    return generate({.ids = ConstTensorView(source.data(), {std::ssize(source)})}, options, prompt);
  }

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("config", self.config...);
    f("convolution1", self.convolution1...);
    f("convolution2", self.convolution2...);
    f("source_embedding", self.source_embedding...);
    f("target_embedding", self.target_embedding...);
    f("source_positions", self.source_positions...);
    f("target_positions", self.target_positions...);
    f("source_norm", self.source_norm...);
    f("target_norm", self.target_norm...);
    f("encoder_bias", self.encoder_bias...);
    f("decoder_bias", self.decoder_bias...);
    f("encoder", self.encoder...);
    f("decoder", self.decoder...);
    f("output", self.output...);
    f("output_bias", self.output_bias...);
  }
};

// Loads a model from config.json and model.safetensors (one file or several with an index). Parameters are views of the mapped file, in its dtype. Only
// convolutions, and tables of positions that a formula gives, are copies. A tensor that is missing, does not fit the config, or has no place in the model is an
// Error.
SequenceToSequenceModel load_sequence_to_sequence_model(const std::filesystem::path& folder, const LanguageLoadOptions& options = {});

}  // namespace polyhead::models
#pragma GCC visibility pop
