// The regular expressions that tokenizers of a live page may have. apps/live/page_regex.h implements them; `polyhead view --live` refuses a tokenizer.json with any other.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace polyhead::app {

// kWordsOfGpt2 equals models::kGpt2Pattern (apps/live/page_regex.cc checks it).
inline constexpr std::string_view kWordsOfGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", kSpaces = " {2,}";
inline constexpr std::array kPagePatterns{kWordsOfGpt2, kSpaces};

inline bool page_has_pattern(std::string_view pattern) { return std::ranges::find(kPagePatterns, pattern) != kPagePatterns.end(); }

}  // namespace polyhead::app
