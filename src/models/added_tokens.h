// Finds added tokens in a text before it is split into words.
#pragma once

#include <cstddef>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "models/unicode.h"

namespace polyhead::models {

// One added token, or text without added tokens.
struct Section {
  const AddedToken* token = nullptr;  // nullptr: text without added tokens
  std::span<const Char> chars;
};

class AddedTokenFinder {
 public:
  // `tokens`: each added token with the characters to find, which are normalised if the token is searched for in normalised text.
  // The tokens must outlive the finder.
  explicit AddedTokenFinder(std::vector<std::pair<const AddedToken*, std::vector<Char>>> tokens);

  // Finds tokens from left to right, at each character the longest one. Sections do not overlap and are not empty.
  std::vector<Section> split(std::span<const Char> text) const;

 private:
  struct Entry {
    const AddedToken* token;
    std::vector<Char> content;
  };
  const Entry* match_at(std::span<const Char> text, std::size_t at) const;

  std::unordered_map<char32_t, std::vector<Entry>> by_first_;  // key: first character; in each list the longest token first
};

}  // namespace polyhead::models
