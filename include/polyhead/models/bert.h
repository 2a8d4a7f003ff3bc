// The encoder of BERT (Devlin et al. 2018): embeddings of words, positions and segments, then post-norm encoder layers. No dropout.
// Letters: * any number of leading (batch) dimensions, T tokens, E width, N heads, L layers.
#pragma once

#include <filesystem>
#include <vector>

#include "polyhead/models/encoder_layer.h"
#include "polyhead/nn/embedding.h"

#pragma GCC visibility push(default)
namespace polyhead::models {

// The comments name the keys of config.json.
struct BertConfig {
  std::int64_t vocabulary = 30522;                   // vocab_size
  std::int64_t positions = 512;                      // max_position_embeddings
  std::int64_t segments = 2;                         // type_vocab_size
  std::int64_t width = 768;                          // hidden_size
  std::int64_t layers = 12;                          // num_hidden_layers
  std::int64_t heads = 12;                           // num_attention_heads; must divide the width
  std::int64_t hidden_width = 3072;                  // intermediate_size
  nn::Activation activation = nn::Activation::gelu;  // hidden_act
  double epsilon = 1e-12;                            // layer_norm_eps
  DType dtype = DType::f32;
  std::uint64_t seed = 0;  // of the random initial parameters
};

// Reads a config.json. Error when a key is missing, of the wrong type or out of range, when the activation or the kind of model is unknown,
// or when the heads do not divide the width.
BertConfig read_bert_config(const std::filesystem::path& path);

struct BertInput {
  ConstTensorView ids;               // [*,T] int64 or int32, in [0, vocabulary)
  ConstTensorView segments = {};     // [*,T] int64 or int32, in [0, segments); absent: all 0
  ConstTensorView attend_keys = {};  // [*,T] bool, false for padding; absent: all true
};

// Each output is optional and does not change the others.
struct BertOutput {
  TensorView hidden = {};      // [*,T,E] of the last layer
  TensorView all_hidden = {};  // [L+1,*,T,E]: the embeddings, then each layer's output
  TensorView attentions = {};  // [L,*,N,T,T] floating: the attention weights of each layer
  TensorView q = {}, k = {}, v = {};  // [L,*,N,T,H] floating: the projected queries, keys and values of each layer's heads
};

struct BertOptions {
  const Backend* backend = nullptr;
  Executor* executor = nullptr;
  const Workspace* workspace = nullptr;  // memory for intermediate tensors
};

struct BertEncoder : nn::Module<BertEncoder> {
  BertConfig config;
  nn::Embedding words, positions, segments;  // [vocabulary,E] [positions,E] [segments,E]
  nn::LayerNorm embedding_norm;
  std::vector<EncoderLayer> layers;

  // What backward needs from a forward pass. `segments` and the mask of the input are only views: the caller keeps their memory.
  struct Saved {
    BertInput input;
    Tensor embedding_sum;        // [*,T,E] before the norm
    std::vector<Tensor> hidden;  // L tensors [*,T,E]: the input of each layer
    std::vector<EncoderLayer::Saved> layers;
  };

  BertEncoder() = default;
  explicit BertEncoder(const BertConfig& config);

  // T may be at most config.positions. Padding has hidden states too, but no token attends to it.
  void forward(const BertInput& input, const BertOutput& output, const BertOptions& options = {}, Saved* saved = nullptr) const;
  // d_hidden [*,T,E] -> the gradient of every parameter.
  struct Gradients {
    BertEncoder* parameters = nullptr;  // where the gradients go, for example zeros_like(encoder)
  };
  void backward(const Saved& saved, ConstTensorView d_hidden, const Gradients& gradients, const nn::RunOptions& options = {}) const;

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("config", self.config...);
    f("words", self.words...);
    f("positions", self.positions...);
    f("segments", self.segments...);
    f("embedding_norm", self.embedding_norm...);
    f("layers", self.layers...);
  }
};

// Loads config.json and model.safetensors (or its shards) of a folder as the `transformers` package writes it. Tensor names may have a
// prefix ("bert."); pooler and heads are ignored. The parameters are views of the mapped file, in its dtype.
BertEncoder load_bert_encoder(const std::filesystem::path& directory);

}  // namespace polyhead::models
#pragma GCC visibility pop
