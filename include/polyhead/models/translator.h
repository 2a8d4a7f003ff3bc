// A translator of short texts: byte-pair tokens, a Transformer encoder and decoder (Vaswani et al. 2017), and one head of the decoder that training
// guided to show which source word each word of the translation comes from.
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
  static constexpr std::string_view kModelType = "polyhead-translator";  // in config.json
  std::int64_t vocabulary = 0;  // size of the tokenizer's vocabulary, which both languages share
  std::int64_t longest = 128;   // maximum number of tokens of a text of either language, without start and end
  std::int64_t model_width = 64;
  std::int64_t hidden_width = 256;  // hidden width of the feed-forward parts
  std::int64_t layers = 2;          // number of layers of the encoder, and of the decoder
  std::int64_t heads = 4;
  std::int64_t guided_head = 0;  // index of the guided head in the cross-attention of the decoder's last layer
  double dropout = 0;
  DType dtype = DType::f32;             // not stored in files; the seed is not stored either
  nn::Seed seed;  // draws the initial parameters

  template <class F, class Self>
  static void visit_fields(const F& f, Self& self) {
    f("vocabulary", self.vocabulary), f("longest", self.longest), f("model_width", self.model_width), f("hidden_width", self.hidden_width);
    f("layers", self.layers), f("heads", self.heads), f("guided_head", self.guided_head), f("dropout", self.dropout);
  }
};

struct Translator {
  // Special tokens of the tokenizer. The decoder reads the start token and then the translation; it writes the translation and the end token. The source also
  // ends with the end token: a word of the translation that corresponds to no word of the source may attend to the end token.
  static constexpr std::int64_t kStart = 0, kEnd = 1;
  static std::vector<std::string> special_tokens() { return {"<start>", "<end>"}; }

  TranslatorConfig config{.seed = 0};
  BytePairTokenizer tokenizer;
  nn::EncoderDecoder network;  // pre-norm, with one embedding for both languages and the output

  // config.vocabulary is taken from the tokenizer.
  Translator(TranslatorConfig config, BytePairTokenizer tokenizer);
};

struct TranslateOptions {
  std::int64_t beams = 1;     // 1: the likeliest token at each step; else the best of beam_search()
  double length_penalty = 1;  // as BeamSearchOptions::length_penalty
  Executor* executor = nullptr;
};

// The maps of a translation. S source tokens, the end token included; T target tokens, the start token included. Row t of a map shows what a head
// reads while the decoder's newest input is target token t.
struct Translation {
  std::string text;
  bool complete = true;         // false: cut off at config.longest tokens
  BytePairText source, target;  // tokens without start and end token
  Tensor source_attentions;     // [L,N,S,S], of the encoder
  Tensor target_attentions;     // [L,N,T,T]
  Tensor attentions;            // [L,N,T,S], of the decoder to the source
  HeadVectors source_vectors, target_vectors, vectors;  // q, k and v of the heads of the three maps above. In target_attentions, token t attends to tokens 0 to t
  std::vector<std::int64_t> alignment;  // for each target word the index of the source word that the guided head reads most (words as in word_spans); -1: the end token
};

Translation translate(const Translator& model, std::string_view text, const TranslateOptions& options = {});
// Computes the maps for a given translation. Error if a text has more tokens than the model's longest.
Translation read_translation(const Translator& model, const BytePairText& source, const BytePairText& target);

// Translates many sources, given without start and end tokens, in batches. Returns the tokens of the translations.
std::vector<std::vector<std::int64_t>> translate_all(const Translator& model, const std::vector<std::vector<std::int64_t>>& sources, const TranslateOptions& options = {});

// Returns for each of `count` target words the source word to which a head attends most, or -1 if it attends most to the end token. `map` [T,S] is the
// head's map; attention is summed over the tokens of a word. source_words and target_words give the word of each token, without the start and end tokens;
// tokens of word -1 are left out.
std::vector<std::int64_t> align_words(ConstTensorView map, std::span<const std::int64_t> source_words, std::span<const std::int64_t> target_words, std::int64_t count);

void save_translator(const Translator& model, const std::filesystem::path& folder);
Translator load_translator(const std::filesystem::path& folder);

}  // namespace polyhead::models
#pragma GCC visibility pop
