// A tokenizer and an encoder. They turn a text into the attention weights of every head, and into one vector for the whole text, its embedding.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "polyhead/models/bert.h"
#include "polyhead/models/head_vectors.h"
#include "polyhead/models/tokenizer.h"

#pragma GCC visibility push(default)
namespace polyhead::models {

// Computes the embedding of a text, out[*,E] = m / max(|m|, 1e-12). m is the mean of hidden[*,T,E] over the tokens for which attend_keys [*,T] is true; absent
// attend_keys: over all tokens. If there is no such token, m = 0. The `sentence-transformers` package computes the same embedding for models with mean pooling
// and a normalising layer.
void sentence_embedding(ConstTensorView hidden, ConstTensorView attend_keys, TensorView out);

struct SentenceResult {
  TokenizedText tokens;  // T tokens
  Tensor ids;            // [T] int64
  Tensor hidden;         // [T,E]: output of the last layer
  Tensor all_hidden;     // [L+1,T,E]: the input of the first layer, then each layer's output; absent without SentenceOptions::all_hidden
  Tensor attentions;     // [L,N,T,T], float32, or float64 for a float64 model; absent without SentenceOptions::attentions
  Tensor pooled;         // [L,N,p,p]: the largest attention weight of each block of a map; absent without SentenceOptions::pooled
  Tensor embedding;      // [E], float32, or float64 for a float64 model; absent if the model has another embedding (SentenceModel::other_embedding)
  Tensor q, k, v;        // [L,N,T,H], of the dtype of `attentions`; absent without SentenceOptions::head_vectors
  // bias and attend broadcast to [L,N,T,T]. Both are absent without SentenceOptions::head_vectors.
  Tensor bias;           // the bias of the scores; absent if the model has no relative bias
  Tensor attend;         // bool: true where a token may attend to a key; absent if every token attends to all tokens
  std::optional<LayerRotations> rotations;  // how rotary positions rotated q and k; absent without rotary positions, and without head_vectors
  Tensor value_norms;    // [L,N,T]: the norms of the transformed value vectors (polyhead/nn/value_norms.h); absent without SentenceOptions::value_norms
};

struct SentenceOptions {
  WhenTooLong when_too_long = WhenTooLong::error;  // what to do with a text of more tokens than the model has positions
  bool attentions = true;
  std::int64_t pooled = 0;  // p, the number of blocks along each axis of the pooled maps, at most T; 0: no pooled maps
  bool all_hidden = false;
  bool head_vectors = false;
  bool value_norms = false;
  const Backend* backend = nullptr;
  Executor* executor = nullptr;
  const Workspace* workspace = nullptr;  // memory for intermediate tensors
};

struct SentenceModel {
  Tokenizer tokenizer;
  BertEncoder encoder;
  // The reason why the model's own embedding is not that of sentence_embedding(), for example "1_Pooling/config.json: pooling_mode_cls_token is true" or
  // "modules.json has the module Dense"; then runs have no embedding. Empty: the embedding is that of sentence_embedding(). It has the length 1 even if
  // modules.json has no Normalize.
  std::string other_embedding{};

  // Returns the tokens of a text, with special tokens, and at most encoder.config.longest() of them.
  TokenizedText tokenize(std::string_view text, WhenTooLong when_too_long = WhenTooLong::error) const;
  TokenizedText tokenize(std::string_view text, std::string_view pair, WhenTooLong when_too_long = WhenTooLong::error) const;

  SentenceResult run(std::string_view text, const SentenceOptions& options = {}) const;
  SentenceResult run(std::string_view text, std::string_view pair, const SentenceOptions& options = {}) const;
  SentenceResult run(TokenizedText tokens, const SentenceOptions& options = {}) const;

  // Returns the embeddings of several texts, [texts,E], which are computed as one padded batch. Error if other_embedding is not empty. Of `options`, only
  // when_too_long, backend and executor are used.
  Tensor embed(std::span<const std::string> texts, const SentenceOptions& options = {}) const;
};

// Loads a tokenizer and an encoder from a folder that `transformers` wrote: config.json, model.safetensors, and the files that load_tokenizer() reads. The
// parameters are views of the mapped file.
SentenceModel load_bert(const std::filesystem::path& directory);

// Compresses the encoder in folder `from` to about a quarter of the space, and writes it to folder `to` with its tokenizer; load_bert() reads both folders.
// Each row of a matrix becomes int8 values with one float32 scale (polyhead/quantize.h); other parameters become float32. What the encoder does not read, such
// as the head of a task, is left out. Error if `from` is no encoder, is quantised already, or has a parameter that is not finite, or if `to` exists and is not
// an empty folder.
void quantize_bert(const std::filesystem::path& from, const std::filesystem::path& to);
// Returns the names of the files that quantize_bert() writes for the model in `directory`, in the order of writing: model.safetensors and the tokenizer's files
// that exist; if they ask for another embedding (SentenceModel::other_embedding), modules.json and the config.json of its Pooling; config.json last, because a
// folder with config.json counts as a model.
std::vector<std::string> quantized_bert_files(const std::filesystem::path& directory);

}  // namespace polyhead::models
#pragma GCC visibility pop
