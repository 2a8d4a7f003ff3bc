#include <algorithm>
#include <array>
#include <optional>

#include "models/byte_pairs.h"
#include "models/tokenizer/utf8.h"

namespace polyhead::models {
namespace {

bool in_word(const Char& c) { return !is_white_space(c.code) && !is_punctuation(c.code); }
bool is_apostrophe(const Char& c) { return c.code == '\'' || c.code == 0x2019; }

std::vector<Char> normalize_text(std::span<const Char> chars, bool lowercase) {
  std::vector<Char> result;
  result.reserve(chars.size());
  for (const Char& c : chars) {
    if (lowercase) append_lowercase(result, c);
    else result.push_back(c);
  }
  return std::ranges::all_of(result, [](const Char& c) { return c.code < 0x80; }) ? result : compose(decompose(result));
}

PreToken make_pre_token(std::span<const Char> chars, std::int64_t word) {
  PreToken pre_token{.word = word};
  if (in_word(chars.front())) {
    pre_token.bytes = kWordMark;
    pre_token.spans = {{chars.front().span.first, chars.front().span.first}};
  }
  for (const Char& c : chars) {
    append_char(pre_token.bytes, c.code);
    pre_token.spans.resize(pre_token.bytes.size(), c.span);
  }
  return pre_token;
}

// Appends the pre-tokens of a text. `given` has the number of each character's word, -1 for white space; if it is empty, this function numbers the words. No
// pre-token has characters of two given words.
void append_pre_tokens(PreTokens& result, std::span<const Char> chars, std::span<const std::int64_t> given) {
  const std::size_t size = chars.size();
  const auto joined = [&](std::size_t i) { return given.empty() || given[i - 1] == given[i]; };  // true if characters i - 1 and i belong to one word
  const auto white = [](const Char& c) { return is_white_space(c.code); };
  const auto after_white = [&](std::size_t i) {
    while (i < size && white(chars[i])) ++i;
    return i;
  };
  const auto add = [&](std::size_t first, std::size_t last) {
    const auto own = chars.subspan(first, last - first);
    const auto visible = std::ranges::find_if_not(own, white);
    std::int64_t word = -1;
    if (visible != own.end() && !given.empty()) {
      word = given[first + static_cast<std::size_t>(visible - own.begin())];
    } else if (visible != own.end()) {
      word = std::ssize(result.words);
      ByteSpan span = visible->span;
      for (const Char& c : own)
        if (!white(c)) span = {std::min(span.first, c.span.first), std::max(span.last, c.span.last)};
      result.words.push_back(span);
    }
    result.pre_tokens.push_back(make_pre_token(own, word));
  };
  for (std::size_t i = 0; i < size;) {
    std::size_t end = i + 1;
    if (in_word(chars[i])) {
      while (end < size && in_word(chars[end]) && joined(end)) ++end;
      if (end + 1 < size && is_apostrophe(chars[end]) && in_word(chars[end + 1]) && joined(end)) ++end;
      add(i, end);
      const bool space_between_words = end + 1 < size && chars[end].code == ' ' && in_word(chars[end + 1]);
      i = space_between_words ? end + 1 : end;
      continue;
    }
    end = after_white(i);
    const std::size_t visible = end;
    while (end < size && is_punctuation(chars[end].code) && (end == visible || joined(end))) ++end;
    if (end > visible) end = after_white(end);
    add(i, end);
    i = end;
  }
}

// Returns whether normal text has no space between these two words. in_quotes: a `"` on the left opened the quotes, and a `"` on the right closes them.
bool no_blank_between(std::span<const Char> left, std::span<const Char> right, bool in_quotes) {
  static constexpr std::u32string_view kClosing = U",.;:!?%…)]}", kOpening = U"([{";
  return kClosing.find(right.front().code) != kClosing.npos || kOpening.find(left.back().code) != kOpening.npos ||
         (is_apostrophe(right.front()) && right.size() > 1) || (is_apostrophe(left.back()) && left.size() > 1) ||
         (in_quotes && ((left.size() == 1 && left.front().code == '"') || (right.size() == 1 && right.front().code == '"')));
}

}  // namespace

PreTokens split_text(std::string_view text, bool lowercase) {
  const DecodedText decoded = decode_utf8(text);
  PreTokens result{.replaced_bytes = decoded.replaced_bytes};
  append_pre_tokens(result, normalize_text(decoded.chars, lowercase), {});
  return result;
}

PreTokens split_given_words(std::string_view text, bool lowercase) {
  const DecodedText decoded = decode_utf8(text);
  PreTokens result{.replaced_bytes = decoded.replaced_bytes};
  const std::vector<Char> chars = normalize_text(decoded.chars, lowercase);
  std::vector<Char> printed;
  std::vector<std::int64_t> given;
  std::span<const Char> before;
  bool quoted = false;
  for (auto first = chars.begin(); first != chars.end();) {
    const auto white = [](const Char& c) { return is_white_space(c.code); };
    first = std::find_if_not(first, chars.end(), white);
    const auto last = std::find_if(first, chars.end(), white);
    if (first == last) break;
    const std::span<const Char> word(first, last);
    if (!before.empty() && !no_blank_between(before, word, quoted)) {
      printed.push_back({U' ', {before.back().span.last, word.front().span.first}});
      given.push_back(-1);
    }
    if (word.size() == 1 && word.front().code == '"') quoted = !quoted;
    ByteSpan span = word.front().span;
    for (const Char& c : word) span = {std::min(span.first, c.span.first), std::max(span.last, c.span.last)};
    printed.insert(printed.end(), word.begin(), word.end());
    given.resize(printed.size(), std::ssize(result.words));
    result.words.push_back(span);
    before = word;
    first = last;
  }
  append_pre_tokens(result, printed, given);
  return result;
}

bool ends_in_word(std::string_view text) {
  if (text.empty()) return false;
  std::size_t first = text.size() - 1;
  while (first > 0 && (static_cast<unsigned char>(text[first]) & 0xC0) == 0x80) --first;
  return in_word(decode_utf8(text.substr(first)).chars.back());
}

}  // namespace polyhead::models
