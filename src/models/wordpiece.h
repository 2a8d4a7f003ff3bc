// Splits words into pieces of a vocabulary (WordPiece).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/unicode.h"

namespace polyhead::models {

class Vocabulary {
 public:
  // Error if a piece is empty or occurs twice; the message counts lines from 1.
  explicit Vocabulary(std::vector<std::string> pieces);

  std::int64_t size() const { return static_cast<std::int64_t>(pieces_.size()); }
  const std::string& piece(std::int64_t id) const { return pieces_[static_cast<std::size_t>(id)]; }
  std::optional<std::int64_t> find(std::string_view piece) const { return exactly(extend(all(), piece)); }

  // All pieces that begin with the same `length` bytes.
  struct Prefix {
    std::span<const std::int64_t> ids;  // sorted by piece
    std::size_t length = 0;
  };
  Prefix all() const { return {sorted_}; }
  // The pieces of `prefix` whose next bytes are `bytes`. Costs two binary searches per byte.
  Prefix extend(Prefix prefix, std::string_view bytes) const;
  // The piece that equals the prefix; nullopt if there is none.
  std::optional<std::int64_t> exactly(const Prefix& prefix) const;

 private:
  std::vector<std::string> pieces_;
  std::vector<std::int64_t> sorted_;  // all ids, sorted by piece
};

struct Piece {
  std::int64_t id;
  ByteSpan span;
};

// Appends the pieces of a word: greedy longest match from the left (Wu et al. 2016, section 4.1). If some part of the word has no piece,
// the whole word becomes one `unknown`. Time: at most (characters of the word) x (characters of the longest piece).
void append_word_pieces(std::vector<Piece>& pieces, std::span<const Char> word, const Vocabulary& vocabulary,
                        std::string_view continuing_prefix, std::int64_t max_word_length, std::int64_t unknown);

// The smallest span that covers the spans of all characters. Canonical ordering may have moved marks, so the spans are not sorted.
ByteSpan covering_span(std::span<const Char> chars);

}  // namespace polyhead::models
