// A text's rating or class: an encoder over its tokens, whose result a few pooling heads read, beside a sum of scores of words and word pairs.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "polyhead/models/byte_pair_tokenizer.h"
#include "polyhead/nn/embedding.h"
#include "polyhead/nn/encoder_layer.h"

#pragma GCC visibility push(default)
namespace polyhead::models {

struct TextClassifierConfig {
  std::int64_t vocabulary = 0;     // of the tokenizer, whose token 0 stands for left-out tokens and padding
  std::int64_t longest = 256;      // tokens of a text
  std::string labels;              // of the classes, separated by tabs; empty: the answer is a rating
  std::int64_t model_width = 48;   // E
  std::int64_t hidden_width = 96;  // of the feed-forward parts
  std::int64_t layers = 2;
  std::int64_t heads = 4;            // N, of each layer and of the pooling
  std::int64_t score_slots = 6016 * 64;  // of the table of scores, a multiple of 64 above the vocabulary; 0: no scores
  double dropout = 0.2;
  DType dtype = DType::f32;             // float32 or float64; not stored in files, and neither is the seed
  std::optional<std::uint64_t> seed{};  // of the initialisation; required

  std::vector<std::string> label_list() const;
  std::int64_t outputs() const;  // C: 1 for ratings, else the number of classes
  // The slots of a text's tokens, then of its pairs of neighbours; and what each of their scores counts in the answer, 10 / sqrt(length).
  std::vector<std::int64_t> slots(std::span<const std::int64_t> ids) const;
  double score_share(std::int64_t length) const;

  template <class F, class Self>
  static void visit_fields(const F& f, Self& self) {
    f("vocabulary", self.vocabulary), f("longest", self.longest), f("labels", self.labels), f("model_width", self.model_width);
    f("hidden_width", self.hidden_width), f("layers", self.layers), f("heads", self.heads), f("score_slots", self.score_slots), f("dropout", self.dropout);
  }
};

// Attention with one learned query for each head: p[n,t] = softmax over t of <query[n], key(y[t])[n]> / sqrt(H); head n gives sum_t p[n,t] value(y[t])[n].
struct AttentionPooling : nn::Module<AttentionPooling> {
  Tensor query;  // [N,H]
  nn::Linear key, value;

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("query", self.query...), f("key", self.key...), f("value", self.value...);
  }
};

// answers = output(heads of pooling(encoder(embedded tokens))) + 10 / sqrt(length) (sum of the scores of tokens and of neighbouring tokens).
// The scores are a bag of words inside the model: token i has slot i; a pair of neighbours shares one of the other slots with whatever pairs hash
// to the same. Pre-norm layers.
struct TextClassifier : nn::Module<TextClassifier> {
  TextClassifierConfig config;
  nn::Embedding words, positions;
  nn::Encoder encoder;
  AttentionPooling pooling;
  nn::Linear output;  // E -> C; head n's values are columns n H to (n + 1) H
  Tensor scores;      // [slots/64,64,C], absent without slots

  struct Batch {
    ConstTensorView ids;            // [B,T] int64, of each text its tokens and then any
    ConstTensorView lengths;        // [B] int64, in [1,T]
    ConstTensorView segments = {};  // [B,T,K] of the parameters' dtype: shares of K parts in each token, for Saved::masses
  };
  // What backward and maps need from a forward pass; the batch is only viewed.
  struct Saved {
    Batch batch;
    Tensor x, y;                           // [B,T,E]
    nn::Encoder::Saved encoder;
    Tensor keys, values;                   // [B,T,N,H], [B,T,N,H+K]
    Tensor p;                              // [B,N,1,T], of the pooling
    Tensor pooled, lse;                    // [B,N,1,H+K], [B,N,1]
    Tensor read;                           // [B,E], after dropout
    double dropped = 0;
    std::uint64_t seed = 0;

    // masses[b,n,k] = sum_t p[b,n,t] segments[b,t,k]: how much of its attention a pooling head gives to a part.
    ConstTensorView masses() const;
  };

  TextClassifier() = default;
  explicit TextClassifier(const TextClassifierConfig& config);

  // answers [B,C]: the rating, or logits. In options: mode, dropout_seed, executor, workspace.
  void forward(const Batch& batch, TensorView answers, Saved& saved, const nn::AttentionOptions& options = {}) const;
  // The gradients of all parameters, replaced, from those of the answers and, if given, of the masses [B,N,K].
  void backward(const Saved& saved, ConstTensorView d_answers, TextClassifier& gradients, ConstTensorView d_masses = {}, const nn::RunOptions& options = {}) const;

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("config", self.config...), f("words", self.words...), f("positions", self.positions...), f("encoder", self.encoder...);
    f("pooling", self.pooling...), f("output", self.output...), f("scores", self.scores...);
  }
};

struct TextModel {
  BytePairTokenizer tokenizer;
  TextClassifier classifier;
};

struct ClassifiedText {
  BytePairText text;
  double rating = 0;                  // of a model of ratings
  std::vector<double> probabilities;  // of the classes, else empty
  std::vector<double> head_parts;     // of a rating: what each pooling head adds to it; without the head it is that much less
  double score_part = 0;              // of a rating: what the scores of words and pairs add
  Tensor attentions;                  // [L,N,T,T], of the encoder
  Tensor pooling;                     // [N,T], which tokens each pooling head reads
};

// Error if the text has no token or more than the model's longest.
ClassifiedText classify(const TextModel& model, std::string_view text);

// The answers [n,C] of many texts, each a list of tokens.
Tensor classify_all(const TextClassifier& classifier, const std::vector<std::vector<std::int64_t>>& texts);

void save_text_model(const TextModel& model, const std::filesystem::path& folder);
TextModel load_text_model(const std::filesystem::path& folder);

}  // namespace polyhead::models
#pragma GCC visibility pop
