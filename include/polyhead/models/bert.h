// Encoders of the BERT family (Devlin et al. 2018 and later models): embeddings, then layers in which every token attends to all tokens. BERT, RoBERTa, XLM-R,
// CamemBERT, DistilBERT, ELECTRA, ALBERT, MPNet, ESM-2 and ModernBERT are configurations of one encoder; load_bert_encoder() reads the folders that the
// `transformers` package writes. The encoder has no dropout.
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

// The sizes and settings of an encoder. A comment that is a single name is the key in BERT's config.json. The first members are for BERT, the later ones for
// other families.
struct BertConfig {
  std::int64_t vocabulary = 30522;                   // vocab_size
  // max_position_embeddings: rows of the position table. With rotary positions: tokens of the longest text in training
  std::int64_t positions = 512;
  std::int64_t segments = 2;                         // type_vocab_size; 0: the model has no segments
  std::int64_t width = 768;                          // hidden_size
  std::int64_t layers = 12;                          // num_hidden_layers
  std::int64_t heads = 12;                           // num_attention_heads; must divide the width
  std::int64_t hidden_width = 3072;                  // intermediate_size
  nn::Activation activation = nn::Activation::gelu;  // hidden_act
  double epsilon = 1e-12;                            // layer_norm_eps
  DType dtype = DType::f32;

  std::string family{"bert"};                       // model_type
  // width of the embeddings if it is not E: a linear layer projects them to E (ELECTRA, ALBERT). 0: the embeddings have width E
  std::int64_t embedding_width = 0;
  std::vector<std::int64_t> shared_layers{};        // [L]: for each layer the index of its parameters in BertEncoder::layers (ALBERT); empty: 0, 1, ...
  std::int64_t layers_of_a_group = 1;               // inner_group_num: ALBERT's files number layers in groups of this size
  // How RoBERTa counts positions: the padding token has the position padding_token; the other tokens have the positions padding_token + 1, padding_token + 2,
  // ... Absent: positions are 0, 1, ...
  std::optional<std::int64_t> padding_token{};
  // number of buckets of a relative bias that all layers add to their scores (MPNet); 0: no such bias
  std::int64_t relative_buckets = 0;
  std::optional<nn::RotaryEmbeddingConfig> rotary{};            // rotary positions, in place of the position table (ESM-2)
  std::optional<nn::RotaryEmbeddingConfig> local_rotary{};      // rotary positions of the layers that have a window (ModernBERT); absent: those of `rotary`
  // [L]: the keys of layer i are at most window_reach[i] tokens away from the query; 0 or an empty list: no window
  std::vector<std::int64_t> window_reach{};
  nn::NormPosition norm_position = nn::NormPosition::post;      // post or pre; with pre, one more norm follows the last layer
  bool embedding_norm = true;
  bool first_norm = true;  // false: layer 0 does not normalise the input of its attention (ModernBERT)
  bool gated = false;      // true: the feed-forward networks have a gate
  bool bias = true, feed_forward_bias = true, norm_bias = true;
  // The token by which ESM replaces masked tokens; it is embedded as 0. The other tokens of a text are scaled by 0.88 / (1 - share of mask tokens), as if 12 %
  // of the tokens had been masked.
  std::optional<std::int64_t> mask_token{};
  bool zero_padding = false;  // true: tokens for which attend_keys is false are embedded as 0 (ESM)

  // Returns the number of tokens of the longest text that the position table allows. With rotary positions, longer texts are allowed too.
  std::int64_t longest() const { return padding_token && !rotary ? positions - *padding_token - 1 : positions; }
};

// Returns the families that load_bert_encoder() knows: the values of model_type in config.json.
std::vector<std::string_view> encoder_families();
// Returns the names that a family's files use for the projections of a layer's attention: "q" -> "attention.self.query". If one tensor holds several
// projections, the name also says which one: "attn.Wqkv q".
std::map<std::string, std::string> attention_names(std::string_view family);

// Reads a config.json. Error if a key is missing, of the wrong type or out of range; if the activation or the kind of model is unknown; if a value is not
// supported; or if the number of heads does not divide the width.
BertConfig read_bert_config(const std::filesystem::path& path);

struct BertInput {
  ConstTensorView ids;               // token ids: [*,T] int64 or int32, in [0, vocabulary)
  ConstTensorView segments = {};     // segments of the tokens: [*,T] int64 or int32, in [0, segments); absent: all 0. Error for an encoder without segments
  ConstTensorView attend_keys = {};  // [*,T] bool, false for padding; absent: no padding
};

// Results of the encoder. Each output is optional; requesting one does not change the others.
struct BertOutput {
  TensorView hidden = {};      // [*,T,E]: output of the last layer, after the final norm if there is one
  TensorView all_hidden = {};  // [L+1,*,T,E]: the input of the first layer, then each layer's output; the last one equals `hidden`
  TensorView attentions = {};  // [L,*,N,T,T] floating: the attention weights of each layer
  TensorView pooled = {};      // [L,*,N,h,w] floating: the attention weights, reduced to blocks by attention_pooled_map()
  Pooling pooling = Pooling::largest;  // how `pooled` reduces a block of attention weights
  // [L,*,N,T,H] floating: the projected queries, keys and values of each layer's heads; q and k are rotated if positions are rotary
  TensorView q = {}, k = {}, v = {};
};

struct BertOptions {
  const Backend* backend = nullptr;
  Executor* executor = nullptr;
  const Workspace* workspace = nullptr;  // memory for intermediate tensors
};

struct BertEncoder : nn::Module<BertEncoder> {
  BertConfig config;
  // [vocabulary,E] [positions,E] [segments,E]; with embedding_width, that replaces E. A table that the config does not have is absent.
  nn::Embedding words, positions, segments;
  nn::Norm embedding_norm;
  std::vector<EncoderLayer> layers;  // the layers' parameters; several layers may share one element, as config.shared_layers says
  nn::Linear embedding_projection;   // embedding_width -> E
  Tensor relative_bias;              // [relative_buckets,N]
  nn::Norm final_norm;               // the norm after the last layer; only with NormPosition::pre

  // The tables of rotary positions for texts of one length.
  struct RotaryTables {
    std::optional<nn::RotaryTables> all, local;
  };
  // What backward() needs from a forward pass. Saved only has views of the input's `segments` and mask, so the caller must keep their memory.
  struct Saved {
    BertInput input;
    Tensor positions;            // [T] or [*,T]: for each token its row in the position table; absent with rotary positions
    Tensor word_scales;          // [*,T]: the factor by which ESM scales each embedded token (see BertConfig::mask_token)
    Tensor embedding_sum;        // [*,T,width of the embeddings]: the sum of the embeddings, before the norm
    Tensor embedded;             // [*,T,width of the embeddings]: the input of embedding_projection; absent without one
    std::vector<Tensor> hidden;  // L tensors [*,T,E]: the input of each layer; if there is a final norm, also its input
    RotaryTables rotary;
    std::vector<EncoderLayer::Saved> layers;
  };

  BertEncoder() = default;
  BertEncoder(const BertConfig& config, nn::Seed seed);  // random parameters

  // With a position table, a text has at most config.longest() tokens. Padding has hidden states too, but no token attends to it.
  void forward(const BertInput& input, const BertOutput& output, const BertOptions& options = {}, Saved* saved = nullptr) const;
  // Where backward() writes the gradients. backward() computes the gradients of all parameters from d_hidden [*,T,E].
  struct Gradients {
    BertEncoder* parameters = nullptr;  // tensors that receive the gradients, for example zeros_like(encoder)
  };
  void backward(const Saved& saved, ConstTensorView d_hidden, const Gradients& gradients, const nn::RunOptions& options = {}) const;

  // Returns the index in `layers` of the parameters of a layer, 0 <= layer < L.
  std::size_t parameters_of(std::int64_t layer) const {
    return static_cast<std::size_t>(config.shared_layers.empty() ? layer : config.shared_layers.at(static_cast<std::size_t>(layer)));
  }
  RotaryTables rotary_tables(std::int64_t tokens) const;
  // Returns the options for the attention of a layer: rotary positions, relative bias and window, as views of the encoder and of `tables`.
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

// Loads an encoder from a folder that the `transformers` package wrote: config.json and model.safetensors (one file or several with an index). Tensor names may
// have a prefix ("bert."). The pooler and task heads such as classifiers are ignored. The parameters are views of the mapped file, in its dtype.
BertEncoder load_bert_encoder(const std::filesystem::path& directory);

}  // namespace polyhead::models
#pragma GCC visibility pop
