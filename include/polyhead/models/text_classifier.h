// Predicts the rating or the class of a text. An encoder reads the tokens of the text, and a few pooling heads read the encoder's output. To the result the
// model adds learned scores of the text's terms: words, starts of words, and word pairs.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "polyhead/models/byte_pair_tokenizer.h"
#include "polyhead/models/head_vectors.h"
#include "polyhead/nn/embedding.h"
#include "polyhead/nn/encoder_layer.h"

#pragma GCC visibility push(default)
namespace polyhead::models {

struct TextClassifierConfig {
  static constexpr std::string_view kModelType = "polyhead-text-classifier";  // the value of model_type in config.json
  std::int64_t vocabulary = 0;     // number of tokens in the tokenizer's vocabulary; token 0 stands for left-out tokens and padding
  std::int64_t longest = 256;           // maximum number of tokens of a text
  std::string labels;              // names of the classes, separated by tabs; empty: the model predicts a rating
  std::int64_t model_width = 48;   // E
  std::int64_t hidden_width = 96;  // hidden width of the feed-forward networks
  std::int64_t layers = 2;
  std::int64_t heads = 4;            // N: the number of heads of each layer, and of pooling heads
  std::int64_t taught_heads = 0;     // the first taught_heads pooling heads are those whose attention was guided in training
  std::int64_t terms = 0;  // number of terms that have learned scores
  double dropout = 0.2;
  DType dtype = DType::f32;             // dtype of the parameters, float32 or float64. Model files store neither the dtype nor the seed.
  nn::Seed seed;  // the initial parameters are drawn with this seed

  std::vector<std::string> label_list() const;
  std::int64_t outputs() const;  // Returns C: 1 for ratings, else the number of classes.

  template <class F, class Self>
  static void visit_fields(const F& f, Self& self) {
    f("vocabulary", self.vocabulary), f("longest", self.longest), f("labels", self.labels), f("model_width", self.model_width);
    f("hidden_width", self.hidden_width), f("layers", self.layers), f("heads", self.heads), f("taught_heads", self.taught_heads), f("terms", self.terms), f("dropout", self.dropout);
  }
};

// Attention with one learned query for each head. The attention weights of head n are p[n,t] = softmax over t of <query[n], key(y[t])[n]> / sqrt(H), and its
// result is sum_t p[n,t] value(y[t])[n].
struct AttentionPooling : nn::Module<AttentionPooling> {
  Tensor query;  // [N,H]
  nn::Linear key, value;

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("query", self.query...), f("key", self.key...), f("value", self.value...);
  }
};

// The classifier computes answers = output(heads of pooling(encoder(embedded tokens))) + share (sum of the scores of the text's terms). The second summand is a
// bag-of-words model. Layers are pre-norm.
struct TextClassifier : nn::Module<TextClassifier> {
  TextClassifierConfig config{.seed = 0};
  nn::Embedding words, positions;
  nn::Encoder encoder;
  AttentionPooling pooling;
  nn::Linear output;  // projects E to C; the values of head n are columns n H to (n + 1) H
  Tensor scores;      // [R,64,C], R = ceil(terms / 64): row (i / 64, i % 64) holds the scores of term i; absent without terms

  struct Batch {
    ConstTensorView ids;            // [B,T] int64: the tokens of each text; after its last token any ids of the vocabulary
    ConstTensorView lengths;        // [B] int64, in [1,T]: the number of tokens of each text
    // [B,T,K], of the parameters' dtype: for each token, how much of it belongs to each of K parts of the text (see Saved::masses)
    ConstTensorView segments = {};
    ConstTensorView terms = {};     // [B,S] int64: the terms of each text whose scores are added, then -1; absent: no scores are added
    ConstTensorView shares = {};    // [B] float64: the factor of the scores of all terms of each text
  };
  // What backward() and maps need from a forward pass. `batch` has views of the caller's memory, so the caller must keep that memory.
  struct Saved {
    Batch batch;
    Tensor x, y;                           // [B,T,E]
    nn::Encoder::Saved encoder;
    Tensor keys, values;                   // [B,T,N,H], [B,T,N,H+K]
    Tensor p;                              // [B,N,1,T]: the attention weights of the pooling heads
    Tensor pooled, lse;                    // [B,N,1,H+K], [B,N,1]
    Tensor read;                           // [B,E]: the results of all pooling heads, one after the other, after dropout
    double dropped = 0;
    std::uint64_t seed = 0;

    // Returns masses[b,n,k] = sum_t p[b,n,t] segments[b,t,k]: how much of its attention pooling head n gives to part k of text b.
    ConstTensorView masses() const;
  };

  TextClassifier() = default;
  explicit TextClassifier(const TextClassifierConfig& config);

  // Computes answers [B,C]: the rating, or the logits of the classes. Of `options`, only mode, dropout_seed, executor and workspace are used.
  void forward(const Batch& batch, TensorView answers, Saved& saved, const nn::AttentionOptions& options = {}) const;
  // Computes the gradients of all parameters from the gradients of the answers and, optionally, of the masses [B,N,K].
  void backward(const Saved& saved, ConstTensorView d_answers, TextClassifier& gradients, ConstTensorView d_masses = {}, const nn::RunOptions& options = {}) const;

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("config", self.config...), f("words", self.words...), f("positions", self.positions...), f("encoder", self.encoder...);
    f("pooling", self.pooling...), f("output", self.output...), f("scores", self.scores...);
  }
};

// The distinct terms of a text, sorted. Terms are: words and runs of punctuation in lower case ("looks"); the first 4 characters of each word, and the first 6
// of longer words ("look*"); pairs of neighbouring words ("looks very"); pairs with one word between them ("looks _ good").
struct TextTerms {
  std::vector<std::string> terms;
  // The factor of the scores: 10 / sqrt(number of words). One step of the optimizer changes a score by about the learning rate; the 10 makes this change large
  // enough to matter.
  double share = 0;
};
inline constexpr std::string_view kTermGap = " _ ";
TextTerms terms_of(std::string_view text);

struct TextModel {
  BytePairTokenizer tokenizer;
  TextClassifier classifier;
  std::vector<std::string> terms{};  // the terms that have scores, sorted
};

// The classifier's input for one text. TextInputs is its input for several texts.
struct TextInput {
  std::vector<std::int64_t> ids, terms;
  double share = 0;
};
TextInput input_of(const TextModel& model, std::string_view text);

struct TextInputs {
  explicit TextInputs(std::span<const TextInput> inputs);
  TextClassifier::Batch batch() const;  // Returns views of the members below.

  std::vector<std::int64_t> lengths, ids, terms;
  std::vector<double> shares;
};

struct ClassifiedText {
  BytePairText text;
  double rating = 0;                  // only set by models that predict a rating
  std::vector<double> probabilities;  // the probability of each class; empty for a rating
  std::vector<double> head_parts;     // only for a rating: what each pooling head adds to it
  double score_part = 0;              // only for a rating: what the scores of the terms add to it
  std::int64_t known_terms = 0;       // number of terms of the text that have learned scores
  Tensor attentions;                  // [L,N,T,T]: the attention weights of the encoder
  Tensor pooling;                     // [N,T]: the attention weights of the pooling heads
  HeadVectors vectors, pooling_vectors;  // vectors: q, k and v of the encoder's heads. pooling_vectors: q [1,N,1,H], k and v [1,N,T,H] of the pooling heads.
};

// Predicts the rating or class of a text. Error if the text has no token, or more tokens than config.longest.
ClassifiedText classify(const TextModel& model, std::string_view text);

// Returns the answers [n,C] for n texts.
Tensor classify_all(const TextClassifier& classifier, std::span<const TextInput> texts);

void save_text_model(const TextModel& model, const std::filesystem::path& folder);
TextModel load_text_model(const std::filesystem::path& folder);

}  // namespace polyhead::models
#pragma GCC visibility pop
