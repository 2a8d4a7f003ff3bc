// Splits texts by the three kinds of pattern that tokenizers of live pages use: a fixed text, runs of spaces, and GPT-2's pattern for words. Results equal those of Regex::split()
// (src/models/tokenizer/regex.h), which needs Oniguruma; Oniguruma has no library for wasm32.
#pragma once

#include <utf8proc.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "models/tokenizer/char_class.h"
#include "models/tokenizer/regex.h"
#include "models/tokenizer/utf8.h"
#include "polyhead/models/tokenizer.h"

namespace polyhead::live {

// True for the characters that \p{L} (is_letter) and \p{N} (is_number) match in Oniguruma, for Unicode 14.
inline bool is_letter(char32_t code) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(models::stand_in(code)));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
inline bool is_number(char32_t code) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(models::stand_in(code)));
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}
inline bool is_space(char32_t code) { return models::is_in(models::CharClass::white_space, models::stand_in(code)); }

// Returns the end of the match of GPT-2's pattern that begins at `at`. A match begins at every character.
inline std::size_t end_of_gpt2_word(std::string_view text, std::size_t at) {
  for (const std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"})
    if (text.substr(at).starts_with(ending)) return at + ending.size();
  const auto while_of = [&](std::size_t from, const auto& of_class) {
    while (from < text.size()) {
      const auto [code, last] = models::char_at(text, from);
      if (!of_class(code)) break;
      from = last;
    }
    return from;
  };
  const auto is_other = [](char32_t code) { return !is_space(code) && !is_letter(code) && !is_number(code); };
  const std::size_t first = at + (text[at] == ' ' ? 1 : 0);
  for (const std::size_t end : {while_of(first, is_letter), while_of(first, is_number), while_of(first, is_other)})
    if (end > first) return end;
  const std::size_t end = while_of(at, is_space);
  if (end == text.size()) return end;
  // last is where the last space of the run starts: the pattern joins this space to the next word
  const std::size_t last = models::char_before(text, end).last;
  return last > at ? last : end;
}

inline std::vector<models::Match> split_gpt2_words(std::string_view text) {
  if (text.empty()) return {{0, 0, false}};
  std::vector<models::Match> parts;
  for (std::size_t at = 0; at < text.size(); at = parts.back().last) parts.push_back({at, end_of_gpt2_word(text, at), true});
  return parts;
}

// next(from) returns the bounds [first, last) of the first match at or after `from`; first is npos if there is no match. As in Regex::split(), an empty match
// directly after another match is ignored.
template <class Next>
std::vector<models::Match> split_at(std::string_view text, const Next& next) {
  if (text.empty()) return {{0, 0, false}};
  std::vector<models::Match> parts;
  std::size_t done = 0, start = 0;
  while (start <= text.size()) {
    const auto [first, last] = next(start);
    if (first == std::string_view::npos) break;
    if (first == last && !parts.empty() && last == done) {
      start = start < text.size() ? models::char_at(text, start).last : start + 1;
      continue;
    }
    start = last;
    if (done < first) parts.push_back({done, first, false});
    parts.push_back({first, last, true});
    done = last;
  }
  if (done < text.size()) parts.push_back({done, text.size(), false});
  return parts;
}

inline std::vector<models::Match> split_at_text(std::string_view text, std::string_view sought) {
  return split_at(text, [&](std::size_t from) {
    const std::size_t first = text.find(sought, from);
    return models::ByteSpan{first, first + sought.size()};
  });
}

inline std::vector<models::Match> split_at_spaces(std::string_view text) {
  return split_at(text, [&](std::size_t from) {
    const std::size_t first = text.find("  ", from);
    return models::ByteSpan{first, first == text.npos ? first : std::min(text.find_first_not_of(' ', first), text.size())};
  });
}

}  // namespace polyhead::live
