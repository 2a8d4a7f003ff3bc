// Encoders of the BERT family (Devlin et al. 2018 and those that followed): embeddings, then layers in which every token attends to all tokens.
// BERT, RoBERTa, XLM-R, CamemBERT, DistilBERT, ELECTRA, ALBERT, MPNet, ESM-2 and ModernBERT are configurations of one encoder; load_bert_encoder
// reads the folders that the `transformers` package writes. No dropout.
// Letters: * any number of leading (batch) dimensions, T tokens, E width, N heads, L layers, H width of a head.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "polyhead/maps.h"
#include "polyhead/models/encoder_layer.h"
#include "polyhead/nn/embedding.h"
#include "polyhead/nn/rotary_embedding.h"

#pragma GCC visibility push(default)
namespace polyhead::models {

// The comments name the keys of BERT's config.json. The first fields are those of BERT; the later fields are for other families.
struct BertConfig {
  std::int64_t vocabulary = 30522;                   // vocab_size
  std::int64_t positions = 512;                      // max_position_embeddings: rows of the position table; with rotary positions: longest text in training
  std::int64_t segments = 2;                         // type_vocab_size; 0: no segments
  std::int64_t width = 768;                          // hidden_size
  std::int64_t layers = 12;                          // num_hidden_layers
  std::int64_t heads = 12;                           // num_attention_heads; must divide the width
  std::int64_t hidden_width = 3072;                  // intermediate_size
  nn::Activation activation = nn::Activation::gelu;  // hidden_act
  double epsilon = 1e-12;                            // layer_norm_eps
  DType dtype = DType::f32;

  std::string family{"bert"};                       // model_type
  std::int64_t embedding_width = 0;                 // width of the embeddings, which a linear layer projects to E (ELECTRA, ALBERT); 0: E, no projection
  std::vector<std::int64_t> shared_layers{};        // [L]: the index in BertEncoder::layers of each layer's parameters (ALBERT); empty: 0, 1, ...
  std::int64_t layers_of_a_group = 1;               // inner_group_num; ALBERT's files number layers in groups of this size
  // The tokens that are not padding_token have the positions padding_token + 1, padding_token + 2, ...; the padding token has the position padding_token
  // (RoBERTa). Absent: positions are 0, 1, ...
  std::optional<std::int64_t> padding_token{};
  std::int64_t relative_buckets = 0;                            // buckets of a relative bias that all layers add to their scores (MPNet); 0: no such bias
  std::optional<nn::RotaryEmbeddingConfig> rotary{};            // replaces the position table (ESM-2)
  std::optional<nn::RotaryEmbeddingConfig> local_rotary{};      // rotary positions of the layers with a window (ModernBERT); absent: `rotary`
  std::vector<std::int64_t> window_reach{};                     // [L]: layer i attends to the keys at most window_reach[i] away on each side; 0 or an empty list: to all
  nn::NormPosition norm_position = nn::NormPosition::post;      // post or pre; with pre the stack ends with one more norm
  bool embedding_norm = true;
  bool first_norm = true;  // false: layer 0 does not norm the input of its attention (ModernBERT)
  bool gated = false;      // the feed-forward parts have a gate
  bool bias = true, feed_forward_bias = true, norm_bias = true;
  // ESM: tokens of this id are embedded as 0. The other tokens of a text are scaled by 0.88 / (1 - share of tokens with this id), as if 12 % of the tokens had
  // been masked.
  std::optional<std::int64_t> mask_token{};
  bool zero_padding = false;  // embeddings of the tokens that attend_keys leaves out are 0 (ESM)

  // Returns the number of tokens of the longest text for which there are positions. With rotary positions, texts may be longer.
  std::int64_t longest() const { return padding_token && !rotary ? positions - *padding_token - 1 : positions; }
};

// Returns the known families, by their model_type in config.json.
std::vector<std::string_view> encoder_families();
// Returns how a family's files name the projections of a layer's attention: "q" -> "attention.self.query". If one tensor holds several projections: "attn.Wqkv
// q".
std::map<std::string, std::string> attention_names(std::string_view family);

// Reads a config.json. Error when a key is missing, of the wrong type or out of range; when the activation or the kind of model is unknown; when a value is not
// supported; or when the number of heads does not divide the width.
BertConfig read_bert_config(const std::filesystem::path& path);

struct BertInput {
  ConstTensorView ids;               // [*,T] int64 or int32, in [0, vocabulary)
  ConstTensorView segments = {};     // [*,T] int64 or int32, in [0, segments); absent: all 0. Error for an encoder without segments.
  ConstTensorView attend_keys = {};  // [*,T] bool, false for padding; absent: all true
};

// Each output is optional and does not change the others.
struct BertOutput {
  TensorView hidden = {};      // [*,T,E]: output of the last layer, after the final norm if there is one
  TensorView all_hidden = {};  // [L+1,*,T,E]: the input of the first layer, then each layer's output, the last one as `hidden`
  TensorView attentions = {};  // [L,*,N,T,T] floating: the attention weights of each layer
  TensorView pooled = {};      // [L,*,N,h,w] floating: the attention weights reduced to blocks, as attention_pooled_map() does
  Pooling pooling = Pooling::largest;  // reduction of the blocks of `pooled`
  TensorView q = {}, k = {}, v = {};  // [L,*,N,T,H] floating: the projected queries, keys and values of each layer's heads, rotated if positions are rotary
};

struct BertOptions {
  const Backend* backend = nullptr;
  Executor* executor = nullptr;
  const Workspace* workspace = nullptr;  // memory for intermediate tensors
};

struct BertEncoder : nn::Module<BertEncoder> {
  BertConfig config;
  nn::Embedding words, positions, segments;  // [vocabulary,E] [positions,E] [segments,E], or embedding_width in place of E; absent where the config has none
  nn::Norm embedding_norm;
  std::vector<EncoderLayer> layers;  // the distinct layers; config.shared_layers says which layers share their parameters
  nn::Linear embedding_projection;   // embedding_width -> E
  Tensor relative_bias;              // [relative_buckets,N]
  nn::Norm final_norm;               // the norm after the last layer, with NormPosition::pre

  // Tables of rotary positions for texts of one length.
  struct RotaryTables {
    std::optional<nn::RotaryTables> all, local;
  };
  // What backward needs from a forward pass. Saved only views the input's `segments` and mask: the caller keeps their memory.
  struct Saved {
    BertInput input;
    Tensor positions;            // for each token its row in the position table, [T] or [*,T]; absent with rotary positions
    Tensor word_scales;          // [*,T]: the factors by which config.mask_token (ESM) scales the embeddings
    Tensor embedding_sum;        // [*,T,width of the embeddings]: sum of the embeddings before the norm
    Tensor embedded;             // [*,T,width of the embeddings]: the input of the projection; absent without a projection
    std::vector<Tensor> hidden;  // L tensors [*,T,E], the input of each layer; with a final norm also the norm's input
    RotaryTables rotary;
    std::vector<EncoderLayer::Saved> layers;
  };

  BertEncoder() = default;
  BertEncoder(const BertConfig& config, nn::Seed seed);  // random parameters

  // With learned positions a text has at most config.longest() tokens. Padding has hidden states too, but no token attends to padding.
  void forward(const BertInput& input, const BertOutput& output, const BertOptions& options = {}, Saved* saved = nullptr) const;
  // Where backward() writes the gradients. It computes the gradient of every parameter from d_hidden [*,T,E].
  struct Gradients {
    BertEncoder* parameters = nullptr;  // tensors that receive the gradients, for example zeros_like(encoder)
  };
  void backward(const Saved& saved, ConstTensorView d_hidden, const Gradients& gradients, const nn::RunOptions& options = {}) const;

  // Returns the index in `layers` of the parameters of layer i, 0 <= i < L.
  std::size_t parameters_of(std::int64_t layer) const {
    return static_cast<std::size_t>(config.shared_layers.empty() ? layer : config.shared_layers.at(static_cast<std::size_t>(layer)));
  }
  RotaryTables rotary_tables(std::int64_t tokens) const;
  // Returns the options of layer i's attention: rotary positions, relative bias and window, as views of the encoder and of `tables`.
  nn::AttentionOptions attention_options(std::int64_t layer, const RotaryTables& tables) const;

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("config", self.config...);
    f("words", self.words...);
    f("positions", self.positions...);
    f("segments", self.segments...);
    f("embedding_norm", self.embedding_norm...);
    f("layers", self.layers...);
    f("embedding_projection", self.embedding_projection...);
    f("relative_bias", self.relative_bias...);
    f("final_norm", self.final_norm...);
  }
};

// Loads config.json and model.safetensors (or its shards) of a folder as the `transformers` package writes it. Tensor names may have a prefix ("bert."); the
// pooler and task heads such as classifiers are ignored. The parameters are views of the mapped file, in its dtype.
BertEncoder load_bert_encoder(const std::filesystem::path& directory);

}  // namespace polyhead::models
#pragma GCC visibility pop
