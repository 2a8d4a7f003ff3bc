#include "models/wordpiece.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "core/text.h"

namespace polyhead::models {

Vocabulary::Vocabulary(std::vector<std::string> pieces) : pieces_(std::move(pieces)), sorted_(pieces_.size()) {
  std::iota(sorted_.begin(), sorted_.end(), 0);
  const auto by_piece = [&](std::int64_t id) -> const std::string& { return piece(id); };
  std::ranges::stable_sort(sorted_, {}, by_piece);
  if (const auto empty = std::ranges::find(pieces_, ""); empty != pieces_.end())
    fail(ErrorCode::format, "vocabulary: line ", empty - pieces_.begin() + 1, " is empty; every line holds one piece");
  if (const auto twice = std::ranges::adjacent_find(sorted_, {}, by_piece); twice != sorted_.end())
    fail(ErrorCode::format, "vocabulary: line ", twice[1] + 1, " repeats the piece '", piece(*twice), "' of line ", *twice + 1);
}

Vocabulary::Prefix Vocabulary::extend(Prefix prefix, std::string_view bytes) const {
  for (const char byte : bytes) {
    const auto next = [&](std::int64_t id) { return prefix.length < piece(id).size() ? static_cast<unsigned char>(piece(id)[prefix.length]) : -1; };
    // std::ranges::equal_range would do both searches, but Clang 14 does not compile it with libstdc++ 12.
    const int wanted = static_cast<unsigned char>(byte);
    const auto first = std::ranges::lower_bound(prefix.ids, wanted, {}, next);
    prefix.ids = {first, std::ranges::upper_bound(first, prefix.ids.end(), wanted, {}, next)};
    ++prefix.length;
  }
  return prefix;
}

std::optional<std::int64_t> Vocabulary::exactly(const Prefix& prefix) const {
  // The ids are sorted by piece, so the shortest piece with this prefix comes first.
  if (prefix.ids.empty() || piece(prefix.ids.front()).size() != prefix.length) return std::nullopt;
  return prefix.ids.front();
}

void append_word_pieces(std::vector<Piece>& pieces, std::span<const Char> word, const Vocabulary& vocabulary,
                        std::string_view continuing_prefix, std::int64_t max_word_length, std::int64_t unknown) {
  const std::size_t before = pieces.size();
  const auto give_up = [&] {
    pieces.resize(before);
    pieces.push_back({unknown, covering_span(word)});
  };
  if (static_cast<std::int64_t>(word.size()) > max_word_length) return give_up();

  const Vocabulary::Prefix continuing = vocabulary.extend(vocabulary.all(), continuing_prefix);
  std::string character;
  for (std::size_t first = 0; first < word.size();) {
    Vocabulary::Prefix prefix = first == 0 ? vocabulary.all() : continuing;
    std::optional<std::int64_t> id;
    std::size_t count = 0;
    for (std::size_t i = first; i < word.size() && !prefix.ids.empty(); ++i) {
      character.clear();
      append_utf8(character, word[i].code);
      prefix = vocabulary.extend(prefix, character);
      if (const auto found = vocabulary.exactly(prefix)) {
        id = found;
        count = i + 1 - first;
      }
    }
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
