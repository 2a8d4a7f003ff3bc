// The vocabulary and the merges of a byte-pair tokenizer. Its text is first split into pre-tokens; a merge joins two tokens of the same pre-token.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "models/tokenizer/word_model.h"
#include "models/unicode.h"
#include "polyhead/models/byte_pair_tokenizer.h"

namespace polyhead::models {

// Stands for the mark at the start of a word; no byte of UTF-8 has this value.
inline constexpr char kWordMark = '\xFF';

using IdPair = std::pair<std::int64_t, std::int64_t>;
struct IdPairHash {
  std::size_t operator()(const IdPair& pair) const { return static_cast<std::size_t>(pair.first) * 0x9E3779B97F4A7C15 + static_cast<std::size_t>(pair.second); }
};

// The functions of Parts are hidden from users of the library, although BytePairTokenizer is exported.
struct BytePairTokenizer::Parts {
  [[gnu::visibility("hidden")]] Parts(bool lowercase, std::vector<std::string> special_tokens);

  // Appends a merge. Two merges may have the same piece as result.
  [[gnu::visibility("hidden")]] void add_merge(const IdPair& pair);
  // Returns the tokens of a pre-token's bytes. Of all pairs that have a merge, the pair learned first is merged first, from left to right.
  [[gnu::visibility("hidden")]] std::vector<Symbol> merge(std::string_view bytes) const;
  std::int64_t byte_id(char byte) const { return static_cast<std::int64_t>(special_tokens.size()) + static_cast<unsigned char>(byte); }

  bool lowercase;
  std::vector<std::string> special_tokens;
  std::vector<std::string> pieces;  // bytes of each id; special tokens have their name
  std::unordered_map<std::string, std::int64_t> ids;  // ids of pieces that are not special
  std::vector<IdPair> pairs;  // pairs that have a merge, in the order in which they were learned
  BytePairs::Merges merges;   // the rank of a pair is its index in `pairs`
};

// visible_piece() writes bytes as text without white space and control characters; parse_piece() reads this text. It throws Error (format) with the reason.
std::string visible_piece(std::string_view bytes);
std::string parse_piece(std::string_view visible);

BytePairTokenizer parse_byte_pairs(std::string_view text, std::string_view name);

struct PreToken {
  std::string bytes;            // begins with kWordMark if the pre-token is a word
  std::vector<ByteSpan> spans;  // place in the text of each byte
  std::int64_t word;            // -1: white space
};

struct PreTokens {
  std::vector<PreToken> pre_tokens;
  std::vector<ByteSpan> words;
  std::int64_t replaced_bytes;
};

PreTokens split_text(std::string_view text, bool lowercase);
PreTokens split_given_words(std::string_view text, bool lowercase);
// Returns whether a space is implied between this text and a word that follows it.
bool ends_in_word(std::string_view text);

}  // namespace polyhead::models
