#include "models/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstddef>

#include "core/text.h"
#include "models/canonical_order.h"

namespace polyhead::models {
namespace {

utf8proc_category_t category(char32_t code) { return utf8proc_category(static_cast<utf8proc_int32_t>(code)); }

int combining_class(const Char& c) { return utf8proc_get_property(static_cast<utf8proc_int32_t>(c.code))->combining_class; }

}  // namespace

DecodedText decode_utf8(std::string_view text) {
  DecodedText decoded;
  decoded.chars.reserve(text.size());
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  for (std::size_t i = 0; i < text.size();) {
    utf8proc_int32_t code = 0;
    utf8proc_ssize_t length = utf8proc_iterate(bytes + i, static_cast<utf8proc_ssize_t>(text.size() - i), &code);
    if (length <= 0) {
      code = 0xFFFD;
      length = 1;
      ++decoded.replaced_bytes;
    }
    const std::size_t end = i + static_cast<std::size_t>(length);
    decoded.chars.push_back({static_cast<char32_t>(code), {i, end}});
    i = end;
  }
  return decoded;
}

bool is_white_space(char32_t code) {
  if ((code >= 0x9 && code <= 0xD) || code == 0x85) return true;
  const auto c = category(code);
  return c == UTF8PROC_CATEGORY_ZS || c == UTF8PROC_CATEGORY_ZL || c == UTF8PROC_CATEGORY_ZP;
}

bool is_punctuation(char32_t code) {
  if (code < 0x80) return code > ' ' && code < 0x7F && !(code >= '0' && code <= '9') && !((code | 0x20) >= 'a' && (code | 0x20) <= 'z');
  const auto c = category(code);
  return c >= UTF8PROC_CATEGORY_PC && c <= UTF8PROC_CATEGORY_PO;
}

bool is_unassigned_or_control(char32_t code) {
  const auto c = category(code);
  return c == UTF8PROC_CATEGORY_CN || c >= UTF8PROC_CATEGORY_CC;  // the categories Cc, Cf, Cs and Co are the last ones
}

bool is_word_character(char32_t code) {
  if (code == 0x200C || code == 0x200D) return true;
  const auto c = category(code);
  return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_NL) || c == UTF8PROC_CATEGORY_PC;  // categories L*, M*, Nd, Nl, Pc
}

std::vector<Char> decompose(std::span<const Char> chars) {
  std::vector<Char> result;
  result.reserve(chars.size());
  for (const Char& c : chars) {
    std::array<utf8proc_int32_t, 32> parts{};
    int boundary = 0;
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c.code), parts.data(), parts.size(), UTF8PROC_DECOMPOSE, &boundary);
    if (count < 0 || count > static_cast<utf8proc_ssize_t>(parts.size()))
      fail(ErrorCode::invalid_argument, "tokenizer: character ", static_cast<std::uint32_t>(c.code), " cannot be decomposed");
    for (utf8proc_ssize_t i = 0; i < count; ++i) result.push_back({static_cast<char32_t>(parts[static_cast<std::size_t>(i)]), c.span});
  }
  order_marks(result, combining_class);
  return result;
}

std::vector<Char> compose(std::vector<Char> chars) {
  compose_marks(chars, combining_class, [](Char& first, const Char& c) {
    if (c.code < 0x300) return false;  // no pair that composes has a second character below U+0300
    std::array<utf8proc_int32_t, 2> pair{static_cast<utf8proc_int32_t>(first.code), static_cast<utf8proc_int32_t>(c.code)};
    if (utf8proc_normalize_utf32(pair.data(), 2, static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE)) != 1) return false;
    first = {static_cast<char32_t>(pair[0]), {std::min(first.span.first, c.span.first), std::max(first.span.last, c.span.last)}};
    return true;
  });
  return chars;
}

void append_lowercase(std::vector<Char>& chars, const Char& c) {
  // U+0130 is the only character whose full lowercase mapping is longer than its simple one (SpecialCasing.txt).
  if (c.code == 0x130) {
    chars.push_back({U'i', c.span});
    chars.push_back({0x307, c.span});
    return;
  }
  chars.push_back({static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c.code))), c.span});
}

}  // namespace polyhead::models
