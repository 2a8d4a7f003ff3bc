// A translator of short texts. It is a Transformer with an encoder and a decoder (Vaswani et al. 2017) on byte-pair tokens. Training guided one head of the
// decoder to show which source word each word of the translation comes from.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "polyhead/models/byte_pair_tokenizer.h"
#include "polyhead/models/head_vectors.h"
#include "polyhead/nn/encoder_decoder.h"

#pragma GCC visibility push(default)
namespace polyhead::models {

struct TranslatorConfig {
  static constexpr std::string_view kModelType = "polyhead-translator";  // the value of model_type in config.json
  std::int64_t vocabulary = 0;  // number of tokens in the tokenizer's vocabulary, which both languages share
  std::int64_t longest = 128;   // maximum number of tokens of a source or a translation, without start and end token
  std::int64_t model_width = 64;
  std::int64_t hidden_width = 256;  // hidden width of the feed-forward networks
  std::int64_t layers = 2;          // number of encoder layers, and of decoder layers
  std::int64_t heads = 4;
  std::int64_t guided_head = 0;  // the head, of the cross-attention in the decoder's last layer, that training guided
  double dropout = 0;
  DType dtype = DType::f32;             // dtype of the parameters. Model files store neither the dtype nor the seed.
  nn::Seed seed;  // the initial parameters are drawn with this seed

  template <class F, class Self>
  static void visit_fields(const F& f, Self& self) {
    f("vocabulary", self.vocabulary), f("longest", self.longest), f("model_width", self.model_width), f("hidden_width", self.hidden_width);
    f("layers", self.layers), f("heads", self.heads), f("guided_head", self.guided_head), f("dropout", self.dropout);
  }
};

struct Translator {
  // The special tokens. The decoder reads the start token and then the translation; it writes the translation and the end token. The source also ends with the
  // end token, so that a word of the translation that corresponds to no source word can attend to the end token.
  static constexpr std::int64_t kStart = 0, kEnd = 1;
  static std::vector<std::string> special_tokens() { return {"<start>", "<end>"}; }

  TranslatorConfig config{.seed = 0};
  BytePairTokenizer tokenizer;
  nn::EncoderDecoder network;  // layers are pre-norm; one embedding serves both languages and the output

  // The constructor sets config.vocabulary to the size of the tokenizer's vocabulary.
  Translator(TranslatorConfig config, BytePairTokenizer tokenizer);
};

struct TranslateOptions {
  std::int64_t beams = 1;     // 1: the likeliest token is chosen at each step; more: nn::beam_search() with so many beams
  double length_penalty = 1;  // see BeamSearchOptions::length_penalty
  Executor* executor = nullptr;
};

// A translation with its attention maps. The source has S tokens, the end token included; the target has T tokens, the start token included. Row t of a map
// shows what a head reads while the decoder's newest input is target token t.
struct Translation {
  std::string text;
  bool complete = true;         // false: the translation was cut off at config.longest tokens
  BytePairText source, target;  // the tokens of both texts, without start and end token
  Tensor source_attentions;     // [L,N,S,S]: the attention weights of the encoder
  Tensor target_attentions;     // [L,N,T,T]
  Tensor attentions;            // [L,N,T,S]: the attention weights of the decoder to the source
  // the q, k and v of the heads of source_attentions, target_attentions and attentions. In target_attentions, token t attends to tokens 0 to t.
  HeadVectors source_vectors, target_vectors, vectors;
  // for each target word the source word that the guided head reads most, as an index in word_spans; -1: it reads the end token most
  std::vector<std::int64_t> alignment;
};

Translation translate(const Translator& model, std::string_view text, const TranslateOptions& options = {});
// Computes the maps for a given source and translation. Error if a text has more than config.longest tokens.
Translation read_translation(const Translator& model, const BytePairText& source, const BytePairText& target);

// Translates many sources in batches. Sources and results are tokens without start and end token.
std::vector<std::vector<std::int64_t>> translate_all(const Translator& model, const std::vector<std::vector<std::int64_t>>& sources, const TranslateOptions& options = {});

// Returns for each of `count` target words the source word to which a head attends most, or -1 if it attends most to the end token. `map` [T,S] is the head's
// map; attention is summed over the tokens of a word. source_words and target_words give for each token the index of its word, without the start and end
// tokens; tokens with the index -1 are left out.
std::vector<std::int64_t> align_words(ConstTensorView map, std::span<const std::int64_t> source_words, std::span<const std::int64_t> target_words, std::int64_t count);

void save_translator(const Translator& model, const std::filesystem::path& folder);
Translator load_translator(const std::filesystem::path& folder);

}  // namespace polyhead::models
#pragma GCC visibility pop
