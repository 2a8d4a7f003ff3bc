// Chooses the sentence that sums a text up. The model is an encoder whose tokens are the text's sentences; its heads show which other sentences each sentence
// reads.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "polyhead/nn/embedding.h"
#include "polyhead/nn/encoder_layer.h"

#pragma GCC visibility push(default)
namespace polyhead::models {

struct SentenceChooserConfig {
  static constexpr std::string_view kModelType = "polyhead-sentence-chooser";  // the value of model_type in config.json
  static constexpr std::string_view kNewField = "taught_heads";                 // model folders that polyhead 0.2 wrote lack this entry of config.json
  std::int64_t slots = 8192;       // number of rows in the table of learned vectors for terms
  std::int64_t model_width = 32;   // E
  std::int64_t hidden_width = 64;  // hidden width of the feed-forward networks
  std::int64_t layers = 1;
  std::int64_t heads = 4;
  std::int64_t taught_heads = 0;  // the first taught_heads heads of layer 0 are those whose attention was guided in training
  double dropout = 0;
  DType dtype = DType::f32;             // dtype of the parameters, float32 or float64. Model files store neither the dtype nor the seed.
  nn::Seed seed;  // the initial parameters are drawn with this seed

  template <class F, class Self>
  static void visit_fields(const F& f, Self& self) {
    f("slots", self.slots), f("model_width", self.model_width), f("hidden_width", self.hidden_width);
    f("layers", self.layers), f("heads", self.heads), f("taught_heads", self.taught_heads), f("dropout", self.dropout);
  }
};

// The features of a sentence that the model reads. A term is one of: a word; a pair of neighbouring words, where the first word is also paired with an empty
// word; the sentence's first one, two or three words; the first one or two words of the sentence before or after. A sentence without words also has an empty
// term.
struct SentenceTerms {
  std::vector<std::int64_t> slots;   // for each distinct term a row of SentenceChooser::terms, chosen by a hash of the term's text; some terms share a row
  // rows of SentenceChooser::places. They stand for the sentence's position from start and end, its length, its overlap with other sentences, and its use of
  // "we".
  std::vector<std::int64_t> places;
};

// With x[s] = sum of terms[slots of s] / sqrt(number of slots) + sum of places[places of s] for sentence s, score[s] = output(encoder(x)[s]). Layers are
// pre-norm.
struct SentenceChooser : nn::Module<SentenceChooser> {
  SentenceChooserConfig config{.seed = 0};
  nn::Embedding terms;   // [slots,E]
  nn::Embedding places;  // [places,E]
  nn::Encoder encoder;
  nn::Linear output;  // E -> 1

  using Text = std::vector<SentenceTerms>;

  // What backward() and maps need from a forward pass. Saved only has a view of the texts, so the caller must keep them.
  struct Saved {
    std::span<const Text> texts;
    Tensor lengths;  // [B]: the number of sentences of each text
    Tensor x, y;     // [B,S,E]
    nn::Encoder::Saved encoder;
    double dropout = 0;  // dropout probability of the forward pass; 0 in evaluation
    std::uint64_t seed = 0;
  };

  SentenceChooser() = default;
  explicit SentenceChooser(const SentenceChooserConfig& config);

  // Returns the features of a text's sentences. Error if there is no sentence. The only term of a sentence without words is the empty term.
  Text read(std::span<const std::string> sentences) const;

  // Computes scores [B,S], where S is the number of sentences of the longest text. Scores after a text's last sentence are unspecified. Of `options`, only
  // mode, dropout_seed, executor and workspace are used.
  void forward(std::span<const Text> texts, TensorView scores, Saved& saved, const nn::AttentionOptions& options = {}) const;
  // Computes the gradients of all parameters from d_scores, which must be 0 after a text's last sentence. `attention_weights` adds gradients d_p [B,S,S] of a
  // loss on the attention weights of heads.
  void backward(const Saved& saved, ConstTensorView d_scores, SentenceChooser& gradients, const nn::RunOptions& options = {}, std::span<const nn::AttentionWeightsGradient> attention_weights = {}) const;

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("config", self.config...), f("terms", self.terms...), f("places", self.places...), f("encoder", self.encoder...), f("output", self.output...);
  }
};

struct ChosenSentence {
  std::int64_t best = 0;
  std::vector<double> scores;  // probability of each sentence: the softmax of the model's scores
  Tensor attentions;           // [L,N,S,S]
};

ChosenSentence choose(const SentenceChooser& model, std::span<const std::string> sentences);
// Returns choose().best without computing attention maps. The memory of maps grows with the square of the number of sentences.
std::int64_t best_sentence(const SentenceChooser& model, std::span<const std::string> sentences);

// Splits a text into sentences. A sentence ends at . ! or ? before white space and a capital letter or a digit, but not after an abbreviation such as "e.g." or
// an initial.
std::vector<std::string> split_sentences(std::string_view text);

void save_sentence_chooser(const SentenceChooser& model, const std::filesystem::path& folder);
SentenceChooser load_sentence_chooser(const std::filesystem::path& folder);

}  // namespace polyhead::models
#pragma GCC visibility pop
