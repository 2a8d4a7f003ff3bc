// BERT's tokenizer (Devlin et al. 2018, appendix A.2; WordPiece: Wu et al. 2016): text -> words -> pieces of a vocabulary.
//
// Steps, in the order and with the meaning of the published `tokenizers` package's BertNormalizer, BertPreTokenizer and WordPiece:
// added tokens ("[MASK]") are found in the raw text; the rest is cleaned, CJK ideographs are set apart, accents are stripped (NFD without
// nonspacing marks), letters lowered (Unicode's full mapping without context); words are split at white space and at each punctuation
// character (every ASCII symbol is one); a word becomes the longest pieces of the vocabulary from its left, or one unknown token.
// Character categories are those of the installed utf8proc (2.8: Unicode 15). `tokenizers` 0.23 carries the marks, punctuation and format
// characters of Unicode 8, so the two differ on 568 characters that were added or changed since, such as U+1ABF or U+2E52.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace polyhead::models {

// A token that is found in the text before words are split, and never split itself.
struct AddedToken {
  std::string content;
  std::int64_t id = 0;
  bool single_word = false;  // not where a letter, digit or underscore touches it
  bool strip_left = false;   // takes the white space before it
  bool strip_right = false;  // takes the white space after it
  bool normalized = false;   // found in the normalised text instead of the raw one
};

struct TokenizerOptions {
  bool clean_text = true;   // control characters, U+0000 and U+FFFD go; each white space character becomes a space
  bool isolate_cjk = true;  // each CJK ideograph is a word of its own
  bool lowercase = true;
  std::optional<bool> strip_accents{};  // as `lowercase` when not given
  std::string continuing_prefix = "##";
  std::int64_t max_word_length = 100;  // characters; a longer word is unknown
  std::string unknown = "[UNK]";
  std::string start = "[CLS]";      // before the first text
  std::string separator = "[SEP]";  // after each text
  std::vector<AddedToken> added_tokens{};
};

// Bytes [first, last) of a text.
struct ByteSpan {
  std::size_t first = 0;
  std::size_t last = 0;
  friend bool operator==(const ByteSpan&, const ByteSpan&) = default;
};

// start, the text's tokens, separator; with a pair also the pair's tokens and a second separator. All vectors are [T].
struct TokenizedText {
  std::vector<std::int64_t> ids;
  std::vector<std::string> pieces;
  std::vector<int> segments;        // 0; 1 for the pair and its separator
  std::vector<bool> special;        // true for start and separator as added here, false for all that stood in the texts
  std::vector<ByteSpan> spans;      // where a token stood in the text, or in the pair where the segment is 1; {0,0} for special ones
  std::int64_t replaced_bytes = 0;  // bytes of both texts that are not UTF-8: each was read as U+FFFD
  std::int64_t dropped_tokens = 0;  // left out by truncation
};

enum class WhenTooLong : std::uint8_t {
  error,          // Error that names the length and the maximum
  longest_first,  // tokens are dropped from the end of the longer text until both fit
};

struct EncodeOptions {
  std::optional<std::int64_t> max_length{};  // of the whole sequence, special tokens included
  WhenTooLong when_too_long = WhenTooLong::error;
};

// Immutable; copies share the vocabulary, and one tokenizer may serve several threads.
class Tokenizer {
 public:
  // Id = index in `vocabulary`. Error when a piece is empty or stands twice, when unknown, start or separator is not among them, or when an
  // added token has another id than its piece.
  explicit Tokenizer(std::vector<std::string> vocabulary, const TokenizerOptions& options = {});

  TokenizedText encode(std::string_view text, const EncodeOptions& options = {}) const;
  TokenizedText encode(std::string_view text, std::string_view pair, const EncodeOptions& options = {}) const;

  std::int64_t vocabulary_size() const;
  std::optional<std::int64_t> find(std::string_view piece) const;
  const TokenizerOptions& options() const;

 private:
  struct Parts;
  TokenizedText encode_texts(std::string_view text, const std::string_view* pair, const EncodeOptions& options) const;
  std::shared_ptr<const Parts> parts_;
};

// From a model folder: vocab.txt (one piece per line) and, as far as they are there, tokenizer.json or else tokenizer_config.json for the
// options. Error when vocab.txt is missing or malformed, or when tokenizer.json describes another kind of tokenizer.
Tokenizer load_tokenizer(const std::filesystem::path& directory);

}  // namespace polyhead::models
