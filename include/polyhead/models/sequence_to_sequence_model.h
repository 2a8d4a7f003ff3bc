// Models with an encoder that reads a source and a decoder that writes a target: T5, mT5, BART, mBART, Marian, Pegasus, Blenderbot and Whisper, read from a
// folder as the `transformers` package writes it. src/models/sequence_families.cc has a row for each family. Evaluation only.
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

// The comments name the keys of config.json; where families differ, the keys of BART.
struct SequenceToSequenceConfig {
  std::string family;                   // model_type
  std::int64_t features = 0;            // M, num_mel_bins: the source is sound, features [M,2 S], which two convolutions turn into S positions; 0: the source is tokens
  std::int64_t vocabulary = 0;          // vocab_size: number of tokens in the source's vocabulary
  std::int64_t target_vocabulary = 0;   // C of the target: vocab_size; decoder_vocab_size if the target has its own embedding
  std::int64_t source_positions = 0, target_positions = 0;  // max_position_embeddings: maximum number of tokens of a text; 0: no limit
  std::int64_t position_offset = 0;     // number of rows before position 0 in the tables of learned positions
  std::int64_t encoder_layers = 0, decoder_layers = 0;
  nn::LayerConfig encoder{.seed = 0};  // settings of all layers: width, heads, head_width, hidden_width, norms, biases, activation, dtype
  nn::LayerConfig decoder{.seed = 0};
  double embedding_scale = 1;           // factor of the embedded tokens: sqrt(E) with scale_embedding
  bool embedding_norm = false;          // the sum of embedded tokens and positions is normalised
  std::optional<double> attention_scale{};  // absent: 1/sqrt(H)
  std::int64_t buckets = 0;             // relative_attention_num_buckets: biases of the self-attention by distance; 0: none
  std::int64_t max_distance = 128;      // relative_attention_max_distance
  double output_scale = 1;              // factor of the decoder's hidden states before the output projection
  bool shared_embedding = true;         // share_encoder_decoder_embeddings: source and target have the same embedding
  bool tied_output = true;              // the output projection is the target's embedding
  AnswerRules answer;
};

// Throws the Errors that read_language_config() throws.
SequenceToSequenceConfig read_sequence_to_sequence_config(const std::filesystem::path& path, const LanguageLoadOptions& options = {});
std::vector<std::string_view> sequence_to_sequence_families();  // the values of model_type that read_sequence_to_sequence_config() knows

struct SourceInput {
  ConstTensorView ids{};          // [*,S] int64 or int32, in [0, C); absent with features
  ConstTensorView features{};     // [*,M,2 S] floating, S = config.source_positions: the input of a model of sound, for which attend_keys is not used
  ConstTensorView attend_keys{};  // [*,S] bool, false for padding; absent: all true
};

// Each output is optional, of any floating dtype, and does not change the others.
struct SourceOutput {
  TensorView memory = {};      // [*,S,E]: output of the encoder, after the final norm if there is one
  TensorView all_hidden = {};  // [Le+1,*,S,E]: the embeddings, then each layer's output; the last one is the memory
  TensorView attentions = {};  // [Le,*,N,S,S]
};

struct TargetInput {
  ConstTensorView ids{};           // [*,T]; [B,T] with a cache: the next tokens of each sequence
  ConstTensorView attend_keys{};   // [*,T] bool; Error with a cache
  ConstTensorView memory{};        // [*,S,E] of the parameters' dtype; absent with a cache, which holds the memory
  ConstTensorView attend_memory{};  // [*,S] bool: attend_keys of the source; absent with a cache, which holds this mask
};

struct TargetOutput {
  TensorView logits = {};       // [*,T,C]: logits of the token that follows each token
  TensorView next_logits = {};  // [*,C]: logits after the last token. Error with attend_keys
  TensorView hidden = {};       // [*,T,E]: hidden states after the final norm if there is one
  TensorView all_hidden = {};   // [Ld+1,*,T,E]: as SourceOutput::all_hidden. Error with a cache, as for attentions and cross_attentions
  TensorView attentions = {};        // [Ld,*,N,T,T]: the decoder's attention to its own tokens
  TensorView cross_attentions = {};  // [Ld,*,N,T,S]: the decoder's attention to the memory
};

struct SequenceToSequenceOptions {
  nn::DecoderCache* cache = nullptr;  // for decode(): holds the memory, and the keys and values of earlier tokens; unchanged if the call throws
  const Backend* backend = nullptr;
  Executor* executor = nullptr;
  const Workspace* workspace = nullptr;  // used as LanguageOptions::workspace is
};

struct SequenceToSequenceModel : nn::Module<SequenceToSequenceModel> {
  SequenceToSequenceConfig config;
  nn::Linear convolution1, convolution2;  // [E,3 M] and [E,3 E]: kernels over three neighbouring positions; convolution2 has stride 2; absent without features
  nn::Embedding source_embedding;  // [C,E]; absent with features
  nn::Embedding target_embedding;  // [C,E]; absent with shared_embedding
  nn::Embedding source_positions, target_positions;  // [position_offset + positions,E]; absent with biases by distance
  nn::Norm source_norm, target_norm;  // norms of the embedded tokens; absent without embedding_norm
  Tensor encoder_bias, decoder_bias;  // [buckets,N], added to the scores of the self-attention of all layers; absent without buckets
  nn::Encoder encoder;
  nn::Decoder decoder;
  nn::Linear output;   // [C,E]; its weight is absent with tied_output
  Tensor output_bias;  // [C]: final_logits_bias; absent: none

  SequenceToSequenceModel() = default;
  explicit SequenceToSequenceModel(const SequenceToSequenceConfig& config);  // random parameters from config.encoder.seed

  void encode(const SourceInput& input, const SourceOutput& output, const SequenceToSequenceOptions& options = {}) const;
  void decode(const TargetInput& input, const TargetOutput& output, const SequenceToSequenceOptions& options = {}) const;
  // Makes a cache for decode(): memory [B,S,E]; attend_memory [B,S] bool or absent; room for `capacity` tokens of each target.
  nn::DecoderCache cache(ConstTensorView memory, std::int64_t capacity, ConstTensorView attend_memory = {}, std::optional<DType> dtype = {}, const nn::RunOptions& options = {}) const;

  // Returns the target of one source (ids [S] or features [M,2 S]): the tokens after the start token, with the end token if it was reached. `prompt`: the
  // target's first tokens, which are not returned; empty: config.answer.start_token.
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

// Loads config.json and model.safetensors (or its shards). Parameters are views of the mapped file, in its dtype, except convolutions and tables of positions
// that a formula gives: those are copies. A tensor that is missing, does not fit the config, or has no place in the model is an Error.
SequenceToSequenceModel load_sequence_to_sequence_model(const std::filesystem::path& folder, const LanguageLoadOptions& options = {});

}  // namespace polyhead::models
#pragma GCC visibility pop
