// Loads any text model from a folder, and runs it on a text: encoders (sentence_model.h), decoders (language_model.h), and models with an encoder and a decoder
// (sequence_to_sequence_model.h). The interface is for callers that show what heads attend to.
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

// The text that the decoder wrote in a model with an encoder and a decoder, and its attention maps. The text has T tokens, of which the first is the start
// token; the source text has S tokens. Row t of a map shows what a head read to choose the token after token t.
struct TextTarget {
  TokenizedText tokens;
  Tensor ids;               // [T] int64
  Tensor cross_attentions;  // [layers,N,T,S]: the decoder's attention to the source text
  Tensor attentions;        // [layers,N,T,T]: the decoder's attention to its own tokens
};

// The results of a text model for a text. A model with an encoder and a decoder gives the encoder's results here. Decoders have no embedding. With K key/value
// heads, k and v are [L,K,T,H]. q, k and v are absent if the attention weights do not follow from q and k alone, because scores are capped, heads have a sink,
// or the scale differs between layers.
struct TextRun : SentenceResult {
  std::optional<double> scale{};  // the factor of the scores; absent: 1/sqrt(H)
  // The text that a decoder wrote. A token that the tokenizer does not have is shown as the piece "<id>" and adds no text. The tokens of this text are the last
  // ones of `tokens` and have segment 1; if the model has an encoder and a decoder, they are in `target` instead.
  std::optional<std::string> generated{};
  std::optional<TextTarget> target{};
};

struct TextRunOptions {
  bool attentions = true;
  std::int64_t pooled = 0;    // the number of blocks along each axis of the pooled maps, at most T; 0: no pooled maps
  bool head_vectors = false;  // true: the run also returns q, k and v
  bool value_norms = false;   // true: the run also returns the value norms. Error for a model with an encoder and a decoder
  std::int64_t generate = 0;  // the maximum number of tokens that a decoder writes; each is the likeliest next token. Error for an encoder unless 0
};

enum class TextModelKind : std::uint8_t {
  encoder,    // computes an embedding of a text
  decoder,    // predicts the next token of a text
  two_sides,  // an encoder reads a text, and a decoder writes another text
};

class AnyTextModel {
 public:
  struct Sizes {
    TextModelKind kind = TextModelKind::encoder;
    std::int64_t layers = 0, heads = 0, width = 0;  // sizes of the model; of the encoder if the model has an encoder and a decoder
    std::int64_t target_layers = 0, target_heads = 0;  // sizes of the decoder if the model has an encoder and a decoder
    std::int64_t head_vectors = 0;          // how many numbers the q, k and v of all layers hold for one token
    std::vector<std::string> rules_not_followed{};  // rules of generation_config.json that the model does not follow when it writes, such as "num_beams = 4"
    // The reason why an encoder's runs have no embedding, as in SentenceModel::other_embedding; empty if they have one, or if the model is no encoder.
    std::string other_embedding{};
    std::optional<std::int64_t> longest{};  // maximum number of tokens of a text; absent: no limit

    // Returns the number of attention weights in all maps of a run: the text has `tokens` tokens, and the model writes `generate` tokens after it. Error beyond
    // 2^63.
    std::int64_t attention_weights(std::int64_t tokens, std::int64_t generate) const;
  };

  virtual ~AnyTextModel() = default;
  AnyTextModel() = default;
  AnyTextModel(const AnyTextModel&) = delete;
  AnyTextModel& operator=(const AnyTextModel&) = delete;

  const Sizes& sizes() const { return sizes_; }
  // Error for a text that is too long, unless it may be cut; for a text without a token; and for a pair of texts if the model is no encoder. After the text,
  // room is kept for `generate` tokens.
  virtual TokenizedText tokenize(std::string_view text, const std::optional<std::string>& pair, WhenTooLong when_too_long, std::int64_t generate = 0) const = 0;
  virtual TextRun run(TokenizedText tokens, const TextRunOptions& options = {}) const = 0;
  // See models::change_without_head(). Error if the model is no encoder.
  virtual double change_without_head(const TextRun& with, std::int64_t layer, std::int64_t head) = 0;

 protected:
  Sizes sizes_;
};

// Returns the kind of the model in a folder, as its config.json says; `encoder` if config.json does not say it.
TextModelKind text_model_kind(const std::filesystem::path& folder);

// Loads a text model from a folder that the `transformers` package wrote. Throws the Errors of load_bert(), load_language_model() and
// load_sequence_to_sequence_model().
std::unique_ptr<AnyTextModel> load_any_text_model(const std::filesystem::path& folder);

}  // namespace polyhead::models
#pragma GCC visibility pop
