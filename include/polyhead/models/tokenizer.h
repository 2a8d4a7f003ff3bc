// BERT's tokenizer (Devlin et al. 2018, appendix A.2; WordPiece: Wu et al. 2016): text -> words -> pieces of a vocabulary.
//
// The steps follow BertNormalizer, BertPreTokenizer and WordPiece of the `tokenizers` package, in this order:
//  1. Added tokens such as "[MASK]" are found in the raw text. The other steps apply to the text between them.
//  2. Control characters are removed, CJK ideographs become words, accents are stripped (NFD without nonspacing marks), letters become
//     lower case (Unicode's full mapping without context).
//  3. The text is split into words at white space and at each punctuation character (every ASCII symbol is one).
//  4. Each word becomes pieces of the vocabulary, the longest match from the left each time, or one unknown token.
// Character categories are those of the installed utf8proc (2.8: Unicode 15). `tokenizers` 0.23 has the marks, punctuation and format
// characters of Unicode 8, so the two differ on 568 characters that were added or changed since, such as U+1ABF or U+2E52.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)
namespace polyhead::models {

// A token that is found in the text before words are split, and is not split itself.
struct AddedToken {
  std::string content;
  std::int64_t id = 0;
  bool single_word = false;  // only found where no letter, digit or underscore is next to it
  bool strip_left = false;   // also matches white space before it
  bool strip_right = false;  // also matches white space after it
  bool normalized = false;   // found in the normalised text instead of the raw one
};

struct TokenizerOptions {
  bool clean_text = true;   // remove control characters, U+0000 and U+FFFD; turn each white space character into a space
  bool isolate_cjk = true;  // make each CJK ideograph a word
  bool lowercase = true;
  std::optional<bool> strip_accents{};  // absent: same as `lowercase`
  std::string continuing_prefix = "##";
  std::int64_t max_word_length = 100;  // in characters; a longer word becomes `unknown`
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
  std::vector<bool> special;        // true for the start and separators added here, false for tokens of the texts
  std::vector<ByteSpan> spans;      // of each token in its text (in the pair if its segment is 1); {0,0} for special tokens
  std::vector<std::pair<std::int64_t, std::string>> unknown;  // words that became `unknown`: place in `pieces`, and the bytes of the text
  std::int64_t replaced_bytes = 0;  // bytes of both texts that are not UTF-8; each is read as U+FFFD
  std::int64_t dropped_tokens = 0;  // number of tokens that truncation removed
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
  // Id = index in `vocabulary`. Error when a piece is empty or occurs twice, when unknown, start or separator is missing, or when the
  // id of an added token is not that of its piece.
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

// Loads a tokenizer from a model folder: the pieces from vocab.txt (one per line), the options from tokenizer.json, else
// tokenizer_config.json, else BERT's defaults. Error when vocab.txt is missing or malformed, or when tokenizer.json describes another kind
// of tokenizer.
Tokenizer load_tokenizer(const std::filesystem::path& directory);

}  // namespace polyhead::models
#pragma GCC visibility pop
