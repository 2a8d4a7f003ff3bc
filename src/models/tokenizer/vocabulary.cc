#include "models/tokenizer/vocabulary.h"

#include <algorithm>
#include <span>
#include <tuple>

#include "core/text.h"
#include "io/json.h"

namespace polyhead::models {

Vocabulary::Vocabulary(std::vector<VocabularyEntry> entries, std::string_view where) : entries_(std::move(entries)) {
  std::ranges::sort(entries_, [](const VocabularyEntry& a, const VocabularyEntry& b) { return std::tie(a.piece, a.id) < std::tie(b.piece, b.id); });
  ids_.reserve(entries_.size());
  places_.reserve(entries_.size());
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const auto& [piece, id] = entries_[i];
    if (id < 0 || id >= std::int64_t{1} << 31) fail(ErrorCode::format, where, " gives ", io::quote(piece), " the id ", id, "; ids are in [0, 2^31)");
    if (const auto [other, added] = places_.emplace(id, i); !added)
      fail(ErrorCode::format, where, " gives the id ", id, " to ", io::quote(entries_[other->second].piece), " and to ", io::quote(piece));
    ids_[piece] = id;  // the last of several equal pieces has the greatest id
  }
}

std::optional<std::int64_t> Vocabulary::find(std::string_view piece) const {
  const auto found = ids_.find(piece);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

const std::string* Vocabulary::piece(std::int64_t id) const {
  const auto found = places_.find(id);
  return found == places_.end() ? nullptr : &entries_[found->second].piece;
}

Vocabulary::Prefix Vocabulary::extend(Prefix prefix, char byte) const {
  const auto next = [&](const VocabularyEntry& entry) { return prefix.length < entry.piece.size() ? static_cast<unsigned char>(entry.piece[prefix.length]) : -1; };
  const std::span range(entries_.data() + prefix.first, prefix.last - prefix.first);
  const int wanted = static_cast<unsigned char>(byte);
  // std::ranges::equal_range would do both searches, but Clang 14 does not compile it with libstdc++ 12.
  const auto first = std::ranges::lower_bound(range, wanted, {}, next);
  const auto last = std::ranges::upper_bound(first, range.end(), wanted, {}, next);
  return {prefix.first + static_cast<std::size_t>(first - range.begin()), prefix.first + static_cast<std::size_t>(last - range.begin()), prefix.length + 1};
}

Vocabulary::Prefix Vocabulary::extend(Prefix prefix, std::string_view bytes) const {
  for (const char byte : bytes) prefix = extend(prefix, byte);
  return prefix;
}

const VocabularyEntry* Vocabulary::exactly(const Prefix& prefix) const {
  // Entries are sorted by piece, so the shortest piece with this prefix comes first. Of equal pieces the last entry has the id that find() returns.
  if (prefix.empty() || entries_[prefix.first].piece.size() != prefix.length) return nullptr;
  std::size_t at = prefix.first;
  while (at + 1 < prefix.last && entries_[at + 1].piece.size() == prefix.length) ++at;
  return &entries_[at];
}

}  // namespace polyhead::models
