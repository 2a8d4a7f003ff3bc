// Finds added tokens in a text before it is split into words.
#pragma once

#include <cstddef>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "models/unicode.h"

namespace polyhead::models {

// Either one token or the text between two of them.
struct Section {
  const AddedToken* token = nullptr;  // nullptr: text
  std::span<const Char> chars;
};

class AddedTokenFinder {
 public:
  // Each token with its content as characters, normalised if it is matched in normalised text. The tokens must outlive the finder.
  explicit AddedTokenFinder(std::vector<std::pair<const AddedToken*, std::vector<Char>>> tokens);

  // Matches are leftmost, then longest, and do not overlap. Text sections are not empty.
  std::vector<Section> split(std::span<const Char> text) const;

 private:
  struct Entry {
    const AddedToken* token;
    std::vector<Char> content;
  };
  const Entry* match_at(std::span<const Char> text, std::size_t at) const;

  std::unordered_map<char32_t, std::vector<Entry>> by_first_;  // longest first
};

}  // namespace polyhead::models
