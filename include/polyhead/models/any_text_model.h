// A model of text from a folder, whatever its family: encoders (sentence_model.h), decoders (language_model.h), and models with an encoder and a decoder
// (sequence_to_sequence_model.h) behind one interface, for callers that show what heads attend to.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "polyhead/models/head_vectors.h"
#include "polyhead/models/sentence_model.h"
#include "polyhead/models/tokenizer.h"

#pragma GCC visibility push(default)
namespace polyhead::models {

// The text that the decoder of a model with encoder and decoder wrote, with its attention maps. T tokens, the first of which is the start token; row t of a map
// shows what a head read to choose the token after t. S tokens of the source text.
struct TextTarget {
  TokenizedText tokens;
  Tensor ids;               // [T] int64
  Tensor cross_attentions;  // [layers,N,T,S]: the decoder's attention to the source text
  Tensor attentions;        // [layers,N,T,T]: the decoder's attention to its own tokens
};

// The results of a model for a text; for a model with encoder and decoder those of the encoder. K key/value heads: k and v are [L,K,T,H]. Decoders have no
// embedding. q, k and v are also absent if attention weights do not follow from q and k alone, because scores are capped, there is a sink, or the scale differs
// between layers.
struct TextRun : SentenceResult {
  std::optional<double> scale{};  // scale of the scores; absent: 1/sqrt(H)
  // The text that a decoder wrote; a token that the tokenizer does not have is shown as the piece "<id>" and adds no text. The tokens that a decoder wrote are
  // the last ones of `tokens` and have segment 1; those that a model with encoder and decoder wrote are in `target`.
  std::optional<std::string> generated{};
  std::optional<TextTarget> target{};
};

struct TextRunOptions {
  bool attentions = true;
  std::int64_t pooled = 0;    // p: number of blocks along each axis of the pooled maps, at most T; 0: no pooled maps
  bool head_vectors = false;  // whether q, k and v are computed
  bool value_norms = false;   // Error if it is set for a model with an encoder and a decoder
  std::int64_t generate = 0;  // maximum number of tokens that a decoder writes, each time the likeliest token; Error if it is not 0 for an encoder
};

enum class TextModelKind : std::uint8_t {
  encoder,    // has an embedding of a text
  decoder,    // predicts the next token
  two_sides,  // an encoder reads a text, and a decoder writes another text
};

class AnyTextModel {
 public:
  struct Sizes {
    TextModelKind kind = TextModelKind::encoder;
    std::int64_t layers = 0, heads = 0, width = 0;  // sizes of the encoder, if the model has an encoder and a decoder
    std::int64_t target_layers = 0, target_heads = 0;  // sizes of the decoder, if the model has an encoder and a decoder
    std::int64_t head_vectors = 0;          // how many numbers q, k and v of all layers hold for one token
    std::vector<std::string> rules_not_followed{};  // rules of generation_config.json that an answer does not follow, such as "num_beams = 4"
    std::string other_embedding{};          // as SentenceModel::other_embedding: why runs have no embedding; empty if they have one, or if the model is no encoder
    std::optional<std::int64_t> longest{};  // maximum number of tokens of a text; absent: any number

    // Returns the number of attention weights in all maps of a text of `tokens` tokens and `generate` tokens that the model writes after it. Error beyond 2^63.
    std::int64_t attention_weights(std::int64_t tokens, std::int64_t generate) const;
  };

  virtual ~AnyTextModel() = default;
  AnyTextModel() = default;
  AnyTextModel(const AnyTextModel&) = delete;
  AnyTextModel& operator=(const AnyTextModel&) = delete;

  const Sizes& sizes() const { return sizes_; }
  // Error for a text that is too long, unless it may be cut; for a pair of texts if the model is no encoder; for a text without a token. `generate`: number of
  // tokens for which room is kept after the text.
  virtual TokenizedText tokenize(std::string_view text, const std::optional<std::string>& pair, WhenTooLong when_too_long, std::int64_t generate = 0) const = 0;
  virtual TextRun run(TokenizedText tokens, const TextRunOptions& options = {}) const = 0;
  // Does what models::change_without_head() does. Error if the model is no encoder.
  virtual double change_without_head(const TextRun& with, std::int64_t layer, std::int64_t head) = 0;

 protected:
  Sizes sizes_;
};

// Returns the kind of the model in a folder, as its config.json says; encoder if config.json does not say it.
TextModelKind text_model_kind(const std::filesystem::path& folder);

// Loads a folder as the `transformers` package writes it. Throws the Errors of load_bert(), load_language_model() or load_sequence_to_sequence_model().
std::unique_ptr<AnyTextModel> load_any_text_model(const std::filesystem::path& folder);

}  // namespace polyhead::models
#pragma GCC visibility pop
