// Tokens that are found in a text before words are split.
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
  // The tokens must outlive the finder. `content` of each is given as characters, because normalised tokens are matched normalised.
  explicit AddedTokenFinder(std::vector<std::pair<const AddedToken*, std::vector<Char>>> tokens);

  // Leftmost match first, the longest of those at one place; matches do not overlap. Text sections are not empty.
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
