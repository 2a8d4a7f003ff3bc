// Pieces of text and their ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace polyhead::models {

struct VocabularyEntry {
  std::string piece;
  std::int64_t id;
};

class Vocabulary {
 public:
  // Error (format) if an id is negative, is 2^31 or more, or occurs twice. If a piece occurs twice, find() gives the later id.
  Vocabulary(std::vector<VocabularyEntry> entries, std::string_view where);
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;
  Vocabulary(const Vocabulary&) = delete;  // not copied, because the index refers to the entries

  std::int64_t size() const { return static_cast<std::int64_t>(entries_.size()); }
  std::optional<std::int64_t> find(std::string_view piece) const;
  const std::string* piece(std::int64_t id) const;  // nullptr if no piece has this id
  const std::vector<VocabularyEntry>& entries() const { return entries_; }  // sorted by piece

  // All pieces that begin with the same `length` bytes: entries [first,last).
  struct Prefix {
    std::size_t first, last;
    std::size_t length = 0;
    bool empty() const { return first == last; }
  };
  Prefix all() const { return {0, entries_.size()}; }
  // Returns the pieces of `prefix` whose next byte is `byte`. Takes two binary searches.
  Prefix extend(Prefix prefix, char byte) const;
  Prefix extend(Prefix prefix, std::string_view bytes) const;
  // Returns the entry whose piece is the prefix itself; nullptr if there is none.
  const VocabularyEntry* exactly(const Prefix& prefix) const;

 private:
  std::vector<VocabularyEntry> entries_;
  std::unordered_map<std::string_view, std::int64_t> ids_;
  std::unordered_map<std::int64_t, std::size_t> places_;  // from an id to its index in entries_
};

}  // namespace polyhead::models
