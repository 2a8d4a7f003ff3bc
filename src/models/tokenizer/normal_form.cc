#include "models/tokenizer/normal_form.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>

#include "core/text.h"
#include "models/canonical_order.h"
#include "models/tokenizer/char_class.h"
#include "models/tokenizer/utf8.h"

namespace polyhead::models {
namespace {

struct Part {
  char32_t code;
  std::int64_t change;  // as Change::change
  int combining_class;
};

int combining_class(char32_t code) {
  if (code < 0x300 || !is_in(CharClass::reordered, code)) return 0;
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(code))->combining_class;
}

bool is_hangul_syllable(char32_t code) { return code >= 0xAC00 && code <= 0xD7A3; }

// Returns whether the `tokenizers` package decomposes the character: canonically or, if `compatible`, also by compatibility.
bool decomposes(char32_t code, bool compatible) {
  if (code < 0xA0) return false;
  return is_hangul_syllable(code) || is_in(CharClass::canonical_decomposition, code) || (compatible && is_in(CharClass::compatibility_decomposition, code));
}

void append_decomposition(std::vector<Part>& parts, char32_t code, bool compatible) {
  if (!decomposes(code, compatible)) {
    parts.push_back({code, 0, combining_class(code)});
    return;
  }
  std::array<utf8proc_int32_t, 32> codes{};
  int boundary = 0;
  const auto options = static_cast<utf8proc_option_t>(compatible ? UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT : UTF8PROC_DECOMPOSE);
  const utf8proc_ssize_t count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), codes.data(), codes.size(), options, &boundary);
  if (count < 1 || count > static_cast<utf8proc_ssize_t>(codes.size()))
    fail(ErrorCode::invalid_argument, "tokenizer: character ", static_cast<std::uint32_t>(code), " cannot be decomposed");
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    const auto part = static_cast<char32_t>(codes[static_cast<std::size_t>(i)]);
    parts.push_back({part, i > 0, combining_class(part)});
  }
}

std::optional<char32_t> composed_pair(char32_t first, char32_t second) {
  if (second < 0x300) return std::nullopt;  // no pair that composes has a second character below U+0300
  if (second == 0x11A7) return std::nullopt;  // U+11A7 is no final consonant of Hangul, although utf8proc 2.8 drops it behind a syllable
  std::array<utf8proc_int32_t, 2> pair{static_cast<utf8proc_int32_t>(first), static_cast<utf8proc_int32_t>(second)};
  if (utf8proc_normalize_utf32(pair.data(), 2, static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE)) != 1) return std::nullopt;
  const auto code = static_cast<char32_t>(pair[0]);
  if (!decomposes(code, false)) return std::nullopt;
  return code;
}

}  // namespace

AlignedText normal_form(AlignedView text, NormalForm form) {
  if (std::ranges::all_of(text.bytes, [](char byte) { return static_cast<unsigned char>(byte) < 0x80; }))
    return {std::string(text.bytes), {text.spans.begin(), text.spans.end()}, text.origin};
  std::vector<Part> parts;
  parts.reserve(text.bytes.size());
  for (std::size_t at = 0; at < text.bytes.size();) {
    const auto [code, last] = char_at(text.bytes, at);
    append_decomposition(parts, code, form.compatible);
    at = last;
  }
  order_marks(parts, std::mem_fn(&Part::combining_class));
  if (form.composed) {
    compose_marks(parts, std::mem_fn(&Part::combining_class), [](Part& first, const Part& part) {
      const auto composed = composed_pair(first.code, part.code);
      // A part with `change` replaces 1 - change characters of the old text. The composed part replaces those of both parts:
      // (1 - a) + (1 - b) = 1 - (a + b - 1).
      if (composed) first = {*composed, first.change + part.change - 1, 0};
      return composed.has_value();
    });
  }
  std::vector<Change> changes;
  changes.reserve(parts.size());
  for (const Part& part : parts) changes.push_back({part.code, part.change});
  return apply_changes(text, changes);
}

}  // namespace polyhead::models
