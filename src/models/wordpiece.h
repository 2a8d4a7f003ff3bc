// Words to pieces of a vocabulary.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "models/unicode.h"

namespace polyhead::models {

class Vocabulary {
 public:
  // Error when a piece is empty or stands twice; lines are counted from 1.
  explicit Vocabulary(std::vector<std::string> pieces);

  std::int64_t size() const { return static_cast<std::int64_t>(pieces_.size()); }
  const std::string& piece(std::int64_t id) const { return pieces_[static_cast<std::size_t>(id)]; }
  std::optional<std::int64_t> find(std::string_view piece) const;

 private:
  std::vector<std::string> pieces_;
  std::unordered_map<std::string_view, std::int64_t> ids_;  // views of pieces_: the class cannot be copied

 public:
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;
};

struct Piece {
  std::int64_t id;
  ByteSpan span;
};

// Greedy longest match from the left (Wu et al. 2016, section 4.1); one `unknown` for the whole word when some part of it has no piece.
void append_word_pieces(std::vector<Piece>& pieces, std::span<const Char> word, const Vocabulary& vocabulary,
                        std::string_view continuing_prefix, std::int64_t max_word_length, std::int64_t unknown);

// The bytes from the first to the last that any of the characters came from (canonical ordering may have moved marks).
ByteSpan covering_span(std::span<const Char> chars);

}  // namespace polyhead::models
