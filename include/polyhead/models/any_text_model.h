// A model of text from a folder, whatever its family: encoders (sentence_model.h) and decoders (language_model.h) behind one interface, for callers
// that show what heads attend to.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "polyhead/models/sentence_model.h"
#include "polyhead/models/tokenizer.h"

#pragma GCC visibility push(default)
namespace polyhead::models {

// What a model made of a text. L layers, N heads, K key/value heads, T tokens, E width, H width of a head.
struct TextRun {
  TokenizedText tokens;
  Tensor ids{};         // [T] int64
  Tensor attentions{};  // [L,N,T,T] floating; absent if it was not asked for
  Tensor pooled{};      // [L,N,p,p], the largest attention weight of each block, as attention_pooled_map() has them; absent if it was not asked for
  Tensor hidden{};      // [T,E] of the last layer
  Tensor embedding{};   // [E]; absent from decoders
  // q [L,N,T,H], k and v [L,K,T,H]. Absent if they were not asked for, or if attention weights do not follow from them alone: with capped scores, a sink, or a scale that differs
  // between layers.
  Tensor q{}, k{}, v{};
  std::optional<double> scale{};           // of the scores; absent: 1/sqrt(H)
  Tensor bias{}, attend{};                 // with q, broadcast to [L,N,T,T]: added to the scores; bool: the keys of each query. Absent: none; all
  // The text that a decoder wrote. Its tokens are the last ones and have segment 1; one that the tokenizer lacks is the piece "<id>" and no text.
  std::optional<std::string> generated{};
};

struct TextRunOptions {
  bool attentions = true;
  std::int64_t pooled = 0;    // p: blocks along one side of pooled maps, at most T; 0: none
  bool head_vectors = false;  // q, k and v
  std::int64_t generate = 0;  // the tokens that a decoder adds at most, each time the likeliest; Error if the model is an encoder and this is not 0
};

class AnyTextModel {
 public:
  struct Sizes {
    std::int64_t layers = 0, heads = 0, width = 0;
    std::int64_t head_vectors = 0;          // numbers of q, k and v of one token
    std::optional<std::int64_t> longest{};  // the most tokens of a text; absent: any number
    bool is_decoder = false;                // predicts the next token, and has no embedding of a text
  };

  virtual ~AnyTextModel() = default;
  AnyTextModel() = default;
  AnyTextModel(const AnyTextModel&) = delete;
  AnyTextModel& operator=(const AnyTextModel&) = delete;

  const Sizes& sizes() const { return sizes_; }
  // Error for a text that is too long, unless it may be cut; for a pair if the model is a decoder; for a text without a token. `generate`: tokens that shall
  // have room after the text.
  virtual TokenizedText tokenize(std::string_view text, const std::optional<std::string>& pair, WhenTooLong when_too_long, std::int64_t generate = 0) const = 0;
  virtual TextRun run(TokenizedText tokens, const TextRunOptions& options = {}) const = 0;
  // As models::change_without_head. Error if the model is a decoder.
  virtual double change_without_head(const TextRun& with, std::int64_t layer, std::int64_t head) = 0;

 protected:
  Sizes sizes_;
};

// Loads a folder as the `transformers` package writes it. Error as load_bert() or load_language_model().
std::unique_ptr<AnyTextModel> load_any_text_model(const std::filesystem::path& folder);

}  // namespace polyhead::models
#pragma GCC visibility pop
