// Turns text into the tokens that a model was trained on, and tokens into text: load_tokenizer() reads what a model folder has, encode() and decode() use it.
//
// The steps are those of PyPI's `tokenizers` package, whose tokenizer.json is read:
//  1. Added tokens such as "[MASK]" are found in the raw text. The other steps apply to the text between them.
//  2. The normaliser changes the text: lower case, Unicode's normal forms, sentencepiece's charsmap and so on. Added tokens with `normalized` are found after it.
//  3. The pre-tokeniser splits the text into words.
//  4. The model splits each word into pieces of its vocabulary: WordPiece, BPE, Unigram or WordLevel.
//  5. The post-processor puts special tokens around the text, or around a pair of texts.
// Ids and spans are those of `tokenizers` 0.23.3 on every text, whatever version of Unicode the installed libraries have
// (docs/decisions/0017-tokenizer-json.md). Truncation and padding that a file describes are not applied; EncodeOptions says how long a text may be.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
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
  bool special = false;      // decode() can leave special tokens out
};

// A tokenizer of BERT's kind (Devlin et al. 2018, appendix A.2).
struct BertTokenizerOptions {
  bool clean_text = true;   // remove control characters, U+0000 and U+FFFD; turn each white space character into a space
  bool isolate_cjk = true;  // make each CJK ideograph a word
  bool lowercase = true;
  std::optional<bool> strip_accents{};  // absent: same as `lowercase`
  std::string continuing_prefix = "##";
  std::int64_t max_word_length = 100;  // maximum length in characters; a longer word becomes `unknown`
  std::string unknown = "[UNK]";
  std::string start = "[CLS]";      // token before the first text
  std::string separator = "[SEP]";  // token after each text
  std::vector<AddedToken> added_tokens{};
};

// Bytes [first, last) of a text.
struct ByteSpan {
  std::size_t first = 0;
  std::size_t last = 0;
  friend bool operator==(const ByteSpan&, const ByteSpan&) = default;
};

// The tokens of a text or of a pair, with special tokens around them. All vectors are [T].
struct TokenizedText {
  std::vector<std::int64_t> ids;
  std::vector<std::string> pieces;
  std::vector<int> segments;        // token type ids as in the model's training; BERT: 1 for the second text and the separator after it, else 0
  std::vector<bool> special;        // true for tokens added around the texts, false for tokens of the texts
  std::vector<int> texts;           // 0 for tokens of the text, 1 for those of the pair, -1 for special tokens
  std::vector<ByteSpan> spans;      // bytes of each token in its text; {0,0} for special tokens
  std::vector<std::pair<std::int64_t, std::string>> unknown;  // words that became the unknown token: index of that token in `pieces`, and the bytes of the word
  std::int64_t replaced_bytes = 0;  // bytes of both texts that are not UTF-8; each is read as U+FFFD
  std::int64_t dropped_tokens = 0;  // number of tokens that truncation removed
};

enum class WhenTooLong : std::uint8_t {
  error,          // Error that names the length and the maximum
  longest_first,  // tokens are dropped from the end of the longer text until both fit
};

struct EncodeOptions {
  std::optional<std::int64_t> max_length{};  // maximum length of the whole sequence, special tokens included
  WhenTooLong when_too_long = WhenTooLong::error;
};

// Immutable; copies share the vocabulary, and one tokenizer may serve several threads.
class Tokenizer {
 public:
  // Makes a tokenizer like BERT's; the id of a piece is its index in `vocabulary`. Error when a piece is empty or occurs twice, when unknown, start or
  // separator is missing, or when the id of an added token is not that of its piece.
  explicit Tokenizer(std::vector<std::string> vocabulary, const BertTokenizerOptions& options = {});
  struct Parts;
  explicit Tokenizer(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}

  // Error (invalid_argument) if the text needs an unknown token and the model has none.
  TokenizedText encode(std::string_view text, const EncodeOptions& options = {}) const;
  TokenizedText encode(std::string_view text, std::string_view pair, const EncodeOptions& options = {}) const;
  // Returns the text of tokens, without special tokens unless skip_special is false. Error for an id without a token.
  std::string decode(std::span<const std::int64_t> ids, bool skip_special = true) const;

  std::int64_t vocabulary_size() const;  // number of pieces of the model; added tokens that are no pieces of the model are not counted
  std::int64_t id_limit() const;         // one more than the greatest id, added tokens included
  std::optional<std::int64_t> find(std::string_view piece) const;
  std::optional<std::string> piece(std::int64_t id) const;  // in the form of TokenizedText::pieces; nullopt if no token has this id
  const std::vector<AddedToken>& added_tokens() const;

 private:
  TokenizedText encode_texts(const std::vector<std::string_view>& texts, const EncodeOptions& options) const;
  std::shared_ptr<const Parts> parts_;
};

// Loads a tokenizer from a model folder: from tokenizer.json, with the keys of tokenizer_config.json that the tokenizer's class in transformers 5 applies to it
// (do_lower_case, strip_accents, tokenize_chinese_chars, add_prefix_space); else from vocab.txt, which has one WordPiece piece on each line, with the options of
// tokenizer_config.json or, without that file, BERT's; else from vocab.json and merges.txt, GPT-2's byte-level BPE. Error if the folder has none of these, if a
// file is malformed, if tokenizer_config.json contradicts tokenizer.json in a key that is not followed, such as cls_token, or if tokenizer.json has something that is not supported: the message names its place in the file and what is supported.
Tokenizer load_tokenizer(const std::filesystem::path& directory);

}  // namespace polyhead::models
#pragma GCC visibility pop
