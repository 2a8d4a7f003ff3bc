// Turns text into the tokens that a model was trained on, and tokens into text. load_tokenizer() reads the tokenizer files of a model folder; encode() and
// decode() use them.
//
// The steps are those of PyPI's `tokenizers` package, whose tokenizer.json is read:
//  1. Added tokens such as "[MASK]" are found in the raw text. The other steps apply to the text between them.
//  2. The normaliser changes the text: lower case, Unicode's normal forms, sentencepiece's charsmap and so on. Added tokens with `normalized` are found after
//    this step.
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

// A token such as "[MASK]" that is found in the text before the text is split into words; it is never split itself.
struct AddedToken {
  std::string content;
  std::int64_t id = 0;
  bool single_word = false;  // true: the token is only found where no letter, digit or underscore is next to it
  bool strip_left = false;   // true: white space before the token belongs to it
  bool strip_right = false;  // true: white space after the token belongs to it
  bool normalized = false;   // true: the token is searched for in the normalised text; false: in the raw text
  bool special = false;      // true: decode() can leave the token out
};

// A tokenizer like BERT's (Devlin et al. 2018, appendix A.2).
struct BertTokenizerOptions {
  bool clean_text = true;   // true: removes control characters, U+0000 and U+FFFD, and turns each white space character into a space
  bool isolate_cjk = true;  // true: makes each CJK ideograph a word
  bool lowercase = true;
  std::optional<bool> strip_accents{};  // absent: accents are removed if `lowercase` is true
  std::string continuing_prefix = "##";
  std::int64_t max_word_length = 100;  // maximum number of characters of a word; a longer word becomes `unknown`
  std::string unknown = "[UNK]";
  std::string start = "[CLS]";      // the token before the first text
  std::string separator = "[SEP]";  // the token after each text
  std::vector<AddedToken> added_tokens{};
};

// The bytes [first, last) of a text.
struct ByteSpan {
  std::size_t first = 0;
  std::size_t last = 0;
  friend bool operator==(const ByteSpan&, const ByteSpan&) = default;
};

// The tokens of a text, or of a pair of texts, with special tokens around them. All vectors are [T], except `unknown`.
struct TokenizedText {
  std::vector<std::int64_t> ids;
  std::vector<std::string> pieces;
  std::vector<int> segments;        // token type ids as in the model's training; in BERT 1 for the second text and the separator after it, else 0
  std::vector<bool> special;        // true for the tokens around the texts, false for tokens of the texts
  std::vector<int> texts;           // 0 for tokens of the first text, 1 for tokens of the second text, -1 for special tokens
  std::vector<ByteSpan> spans;      // the bytes of its text that each token covers; {0,0} for special tokens
  // The words that became the unknown token: the index of that token in `pieces`, and the word's bytes.
  std::vector<std::pair<std::int64_t, std::string>> unknown;
  std::int64_t replaced_bytes = 0;  // number of bytes of both texts that are not UTF-8; each is read as U+FFFD
  std::int64_t dropped_tokens = 0;  // number of tokens that truncation removed
};

enum class WhenTooLong : std::uint8_t {
  error,          // throws an Error that names the length and the maximum
  longest_first,  // drops tokens from the end of the longer text until both texts fit
};

struct EncodeOptions {
  std::optional<std::int64_t> max_length{};  // maximum number of tokens of the text or pair, special tokens included; absent: no limit
  WhenTooLong when_too_long = WhenTooLong::error;
};

// A tokenizer. It does not change, so several threads may use it. Copies share one vocabulary.
class Tokenizer {
 public:
  // Makes a tokenizer like BERT's. The id of a piece is its index in `vocabulary`. Error if a piece is empty or occurs twice, if unknown, start or separator is
  // missing from the vocabulary, or if an added token has another id than its piece.
  explicit Tokenizer(std::vector<std::string> vocabulary, const BertTokenizerOptions& options = {});
  struct Parts;
  explicit Tokenizer(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}

  // Returns the tokens of a text, or of a pair of texts. Error (invalid_argument) if the text needs an unknown token and the model has none.
  TokenizedText encode(std::string_view text, const EncodeOptions& options = {}) const;
  TokenizedText encode(std::string_view text, std::string_view pair, const EncodeOptions& options = {}) const;
  // Returns the text that the tokens stand for; special tokens are left out unless skip_special is false. Error for an id without a token.
  std::string decode(std::span<const std::int64_t> ids, bool skip_special = true) const;

  std::int64_t vocabulary_size() const;  // Returns the number of pieces of the model. Added tokens that are no pieces of the model are not counted.
  std::int64_t id_limit() const;         // Returns one more than the greatest id, added tokens included.
  std::optional<std::int64_t> find(std::string_view piece) const;
  std::optional<std::string> piece(std::int64_t id) const;  // Returns a token in the form of TokenizedText::pieces; nullopt if no token has this id.
  const std::vector<AddedToken>& added_tokens() const;

 private:
  TokenizedText encode_texts(const std::vector<std::string_view>& texts, const EncodeOptions& options) const;
  std::shared_ptr<const Parts> parts_;
};

// Loads a tokenizer from a model folder. It reads the first of these that the folder has:
//  - tokenizer.json, with the keys of tokenizer_config.json that the tokenizer's class in transformers 5 applies to it: do_lower_case, strip_accents,
//    tokenize_chinese_chars and add_prefix_space;
//  - vocab.txt, which has one WordPiece piece on each line, with the options of tokenizer_config.json or, without that file, BERT's;
//  - vocab.json and merges.txt, GPT-2's byte-level BPE.
// Error if the folder has none of these, if a file is malformed, or if tokenizer_config.json contradicts tokenizer.json in a key that is not followed, such as
// cls_token. If tokenizer.json has something that is not supported, the Error names its place in the file and what is supported.
Tokenizer load_tokenizer(const std::filesystem::path& directory);

}  // namespace polyhead::models
#pragma GCC visibility pop
