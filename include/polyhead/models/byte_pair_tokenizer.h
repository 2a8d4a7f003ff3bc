// Byte-pair tokenizer that is trained on texts (Sennrich et al. 2016, on bytes as in Radford et al. 2019): text -> tokens -> text.
//
//  1. Text is normalised to NFC and, if the options say so, to lower case (Unicode's full mapping without context).
//  2. It is split into pre-tokens: words (runs without white space and punctuation), and punctuation with the white space around it. An
//     apostrophe between two letters ends the word before it: "l'" "eau". One space between two words is implied and has no
//     token; all other white space and punctuation is kept as it is. So "eau" is the same token after a space and after an apostrophe.
//  3. The bytes of each pre-token are merged as learned in training. A word begins with a mark, shown as "▁", which may be merged like a byte.
// Every text has tokens, because each byte is one: decode(encode(text)) is the normalised text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "polyhead/models/tokenizer.h"

#pragma GCC visibility push(default)
namespace polyhead::models {

struct BytePairOptions {
  std::int64_t vocabulary = 4000;  // maximum number of ids: special tokens, 256 bytes, merged pieces
  bool lowercase = false;
  std::vector<std::string> special_tokens{};  // ids 0, 1, ...; encode() never produces them, even for the text "<pad>"
  std::int64_t min_count = 2;                 // pairs that occur less often in the texts are not merged
};

// All vectors are [T], except word_spans.
struct BytePairText {
  std::vector<std::int64_t> ids;
  std::vector<std::string> pieces;    // for display, as piece() returns them
  std::vector<ByteSpan> spans;        // bytes of each token in the text; tokens that share a character have its whole span
  std::vector<std::int64_t> words;    // for each token the index of its word in word_spans; -1: white space between words
  std::vector<ByteSpan> word_spans;   // [W], words and runs of punctuation
  std::int64_t replaced_bytes = 0;    // bytes that are not UTF-8; each is read as U+FFFD

  // Returns the words; `text` must be the text that was encoded.
  std::vector<std::string> words_in(std::string_view text) const {
    std::vector<std::string> list;
    for (const ByteSpan& span : word_spans) list.emplace_back(text.substr(span.first, span.last - span.first));
    return list;
  }
};

// Immutable; copies share the vocabulary, and one tokenizer may serve several threads.
class BytePairTokenizer {
 public:
  // Trains a tokenizer. The same texts and options give the same tokenizer: of pairs that occur equally often, the one with the smaller ids is merged first.
  static BytePairTokenizer train(std::span<const std::string> texts, const BytePairOptions& options = {});

  BytePairText encode(std::string_view text) const;
  // Encodes a text in which all words and punctuation marks are separated by white space, as in files of word links. `words` counts these words and marks, and
  // each has at least one token. Spaces that normal text does not have are removed before the text is split: those before , . ; : ! ? % … and closing brackets,
  // after opening brackets, inside "", and at the apostrophe of "l' eau" and "Anna 's".
  BytePairText encode_words(std::string_view text) const;
  // Returns the text of tokens, without special tokens. Bytes that are not valid UTF-8 become U+FFFD.
  std::string decode(std::span<const std::int64_t> ids) const;

  std::int64_t vocabulary_size() const;
  bool lowercase() const;
  const std::vector<std::string>& special_tokens() const;
  std::int64_t special_token(std::string_view name) const;  // the token's id; Error if no special token has this name
  // Returns a token for display: "▁" begins a word, "␣" is a space, "\xC3" is a byte that is not a whole character.
  std::string piece(std::int64_t id) const;

  // Writes merges.txt, a text file, into the folder.
  void save(const std::filesystem::path& folder) const;

  struct Parts;
  explicit BytePairTokenizer(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}

 private:
  std::shared_ptr<const Parts> parts_;
};

// Reads merges.txt of a model folder. Errors name the line.
BytePairTokenizer load_byte_pair_tokenizer(const std::filesystem::path& folder);

}  // namespace polyhead::models
#pragma GCC visibility pop
