// The patterns of tokenizer.json that the engine of a live page has (apps/live/page_regex.h); a tokenizer with another one is refused before the page is written.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace polyhead::app {

inline constexpr std::string_view kWordsOfGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", kSpaces = " {2,}";
inline constexpr std::array kPagePatterns{kWordsOfGpt2, kSpaces};

inline bool page_has_pattern(std::string_view pattern) { return std::ranges::find(kPagePatterns, pattern) != kPagePatterns.end(); }

}  // namespace polyhead::app
