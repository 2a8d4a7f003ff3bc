// The models of tokenizer.json that split a word into tokens: WordLevel, WordPiece, BPE and Unigram.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "models/tokenizer/vocabulary.h"

namespace polyhead::models {

struct WordToken {
  std::int64_t id;
  std::size_t first, last;  // bytes of the word, as in `tokenizers`, which shifts these places if BPE drops a character
};

// Each word is one token, or the unknown token.
struct WordLevel {
  std::string unknown;
};

// Takes the longest piece from the left, again and again (Wu et al. 2016, section 4.1). If some part of the word has no piece, the whole word is one unknown
// token. The time is at most proportional to (characters of the word) x (characters of the longest piece).
struct WordPiece {
  std::string unknown;
  std::string continuing_prefix;  // prefix of pieces that do not begin a word
  std::int64_t max_word_length;   // maximum length in characters; a longer word is unknown
};

// Byte-pair encoding (Sennrich et al. 2016, algorithm 1): the pair of neighbours with the least rank is merged, until no pair has a merge. Time O(n log n).
struct BytePairs {
  struct Merge {
    std::int64_t rank, id;  // id of the merged piece
  };
  using Merges = std::unordered_map<std::uint64_t, Merge>;  // by pair_key()
  std::optional<std::string> unknown;  // absent: characters without a piece are dropped
  std::string continuing_prefix, end_suffix;
  bool fuse_unknown = false;   // neighbouring unknown characters are one token
  bool byte_fallback = false;  // a character without a piece becomes its bytes, as "<0x0A>"
  bool ignore_merges = false;  // a word that is a piece is not split
  Merges merges;

  static std::uint64_t pair_key(std::int64_t first, std::int64_t second) { return static_cast<std::uint64_t>(first) << 32 | static_cast<std::uint64_t>(second); }
};

// A token of the word that merge_pairs() works on.
struct Symbol {
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  std::int64_t id;
  std::size_t length;  // length in bytes
  std::size_t before = kNone, after = kNone;  // places of the neighbours; only merge_pairs() uses them
};
// Merges neighbours until no pair has a merge: first the pair of the least rank, of equal ranks the leftmost.
void merge_pairs(std::vector<Symbol>& symbols, const BytePairs::Merges& merges);

// Unigram language model (Kudo 2018): finds the split of the word with the greatest sum of scores. Neighbouring unknown characters are one token.
// The time is proportional to (bytes of the word) x (bytes of the longest piece).
struct Unigram {
  std::vector<double> scores;  // scores by id
  double least_score = 0;      // smallest score of all pieces
  std::optional<std::int64_t> unknown;
  bool byte_fallback = false;
};

using WordModel = std::variant<WordLevel, WordPiece, BytePairs, Unigram>;

// Appends the tokens of a word. Error (invalid_argument) if the word needs the unknown token and the vocabulary has none.
void append_tokens(std::vector<WordToken>& tokens, std::string_view word, const WordModel& model, const Vocabulary& vocabulary);

// append_tokens() for each kind of model.
void append_tokens(std::vector<WordToken>& tokens, std::string_view word, const WordLevel& model, const Vocabulary& vocabulary);
void append_tokens(std::vector<WordToken>& tokens, std::string_view word, const WordPiece& model, const Vocabulary& vocabulary);
void append_tokens(std::vector<WordToken>& tokens, std::string_view word, const BytePairs& model, const Vocabulary& vocabulary);
void append_tokens(std::vector<WordToken>& tokens, std::string_view word, const Unigram& model, const Vocabulary& vocabulary);

// Returns the id of the unknown token of a model; nullopt if it has none.
std::optional<std::int64_t> unknown_id(const WordModel& model, const Vocabulary& vocabulary);
// Returns the piece of a byte, such as "<0x0A>".
std::string byte_piece(unsigned char byte);

}  // namespace polyhead::models
