#include "models/wordpiece.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/text.h"

namespace polyhead::models {

Vocabulary::Vocabulary(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {
  ids_.reserve(pieces_.size());
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    if (pieces_[i].empty()) fail(ErrorCode::format, "vocabulary: line ", i + 1, " is empty; every line holds one piece");
    const auto [known, is_new] = ids_.emplace(pieces_[i], static_cast<std::int64_t>(i));
    if (!is_new) fail(ErrorCode::format, "vocabulary: line ", i + 1, " repeats the piece '", pieces_[i], "' of line ", known->second + 1);
  }
}

std::optional<std::int64_t> Vocabulary::find(std::string_view piece) const {
  const auto found = ids_.find(piece);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

void append_word_pieces(std::vector<Piece>& pieces, std::span<const Char> word, const Vocabulary& vocabulary,
                        std::string_view continuing_prefix, std::int64_t max_word_length, std::int64_t unknown) {
  const std::size_t before = pieces.size();
  const auto give_up = [&] {
    pieces.resize(before);
    pieces.push_back({unknown, covering_span(word)});
  };
  if (static_cast<std::int64_t>(word.size()) > max_word_length) return give_up();

  std::string candidate;
  std::vector<std::size_t> ends;  // ends[i]: bytes of candidate up to and with the i-th character after `first`
  for (std::size_t first = 0; first < word.size();) {
    candidate = first == 0 ? std::string_view() : continuing_prefix;
    ends.clear();
    for (const Char& c : word.subspan(first)) {
      append_utf8(candidate, c.code);
      ends.push_back(candidate.size());
    }
    std::optional<std::int64_t> id;
    std::size_t count = ends.size();
    while (count > 0 && !(id = vocabulary.find(std::string_view(candidate).substr(0, ends[count - 1])))) --count;
    if (!id) return give_up();
    pieces.push_back({*id, covering_span(word.subspan(first, count))});
    first += count;
  }
}

ByteSpan covering_span(std::span<const Char> chars) {
  ByteSpan span = chars.front().span;
  for (const Char& c : chars) {
    span.first = std::min(span.first, c.span.first);
    span.last = std::max(span.last, c.span.last);
  }
  return span;
}

}  // namespace polyhead::models
