// A byte-pair tokenizer that is trained on texts: it merges the pairs of bytes and pieces that occur most often (Sennrich et al. 2016, Radford et al. 2019).
//
//  1. Text is normalised to NFC and, if the options say so, to lower case (Unicode's full mapping without context).
//  2. It is split into pre-tokens: words (runs without white space and punctuation), and punctuation with the white space around it. An
//     apostrophe between two letters ends the word before it: "l'" "eau". One space between two words is implied and has no
//     token; all other white space and punctuation is kept as it is. So "eau" is the same token after a space and after an apostrophe.
//  3. The bytes of each pre-token are merged as learned in training. A word begins with a mark, shown as "▁", which may be merged like a byte.
// Every text can be encoded, because each byte is a token. decode(encode(text)) is the normalised text.
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
  std::int64_t vocabulary = 4000;  // maximum number of token ids: special tokens, 256 bytes and merged pieces
  bool lowercase = false;
  std::vector<std::string> special_tokens{};  // The special tokens have the ids 0, 1, ... encode() never produces them, even for the text "<pad>".
  std::int64_t min_count = 2;                 // pairs of tokens that occur less often than this in the texts are not merged
};

// The tokens of a text. All vectors have an element for each token, except word_spans.
struct BytePairText {
  std::vector<std::int64_t> ids;
  std::vector<std::string> pieces;    // the tokens for display, as piece() returns them
  std::vector<ByteSpan> spans;        // the bytes of the text that each token covers; tokens that share a character all cover its bytes
  std::vector<std::int64_t> words;    // for each token the index of its word in word_spans; -1 for white space between words
  std::vector<ByteSpan> word_spans;   // the bytes of each word and of each run of punctuation
  std::int64_t replaced_bytes = 0;    // number of bytes that are not UTF-8; each is read as U+FFFD

  // Returns the words of the encoded text; `text` must be that text.
  std::vector<std::string> words_in(std::string_view text) const {
    std::vector<std::string> list;
    for (const ByteSpan& span : word_spans) list.emplace_back(text.substr(span.first, span.last - span.first));
    return list;
  }
};

// A trained tokenizer. It does not change, so several threads may use it. Copies share one vocabulary.
class BytePairTokenizer {
 public:
  // Trains a tokenizer. The same texts and options always give the same tokenizer: if two pairs occur equally often, the pair with the smaller ids is merged
  // first.
  static BytePairTokenizer train(std::span<const std::string> texts, const BytePairOptions& options = {});

  BytePairText encode(std::string_view text) const;
  // Encodes a text in which white space separates all words and punctuation marks, as in files of word links. `words` counts these words and marks; each has at
  // least one token. Before the text is split, spaces that normal text does not have are removed: those before , . ; : ! ? % … and closing brackets, after
  // opening brackets, inside "", and at the apostrophe of "l' eau" and "Anna 's".
  BytePairText encode_words(std::string_view text) const;
  // Returns the text that the tokens stand for, without special tokens. Bytes that are not valid UTF-8 become U+FFFD.
  std::string decode(std::span<const std::int64_t> ids) const;

  std::int64_t vocabulary_size() const;
  bool lowercase() const;
  const std::vector<std::string>& special_tokens() const;
  std::int64_t special_token(std::string_view name) const;  // Returns the id of a special token. Error if none has this name.
  // Returns a token for display: "▁" marks the beginning of a word, "␣" is a space, "\xC3" is a byte that is not a whole character.
  std::string piece(std::int64_t id) const;

  // Writes the tokenizer to a folder, as the text file merges.txt.
  void save(const std::filesystem::path& folder) const;

  struct Parts;
  explicit BytePairTokenizer(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}

 private:
  std::shared_ptr<const Parts> parts_;
};

// Reads merges.txt from a model folder. An Error names the line that is wrong.
BytePairTokenizer load_byte_pair_tokenizer(const std::filesystem::path& folder);

}  // namespace polyhead::models
#pragma GCC visibility pop
