// The functions of utf8proc that src/models/unicode.cc calls. They read the tables that make_unicode_tables.cc made with utf8proc itself.
#pragma once

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace polyhead::live::tables {

using Code = utf8proc_int32_t;
struct Run {
  Code first;  // first character of the run, which ends before the first character of the next run
  unsigned char category, order;
};
struct Pair {
  Code from, to;
};
struct Parts {
  Code code;
  Code parts[4];  // canonical decomposition; unused entries are 0
};
struct CompatibleParts {  // only characters whose compatibility decomposition differs from the canonical one have an entry
  Code code;
  std::int32_t first, count;  // the parts are kCompatibleParts[first] to kCompatibleParts[first + count - 1]
};
struct Composition {
  Code first, second, code;
};

#include "unicode_tables.inc"

constexpr Code kHangul = 0xAC00, kLead = 0x1100, kVowel = 0x1161, kTrail = 0x11A7, kVowels = 21, kTrails = 28, kSyllables = 19 * kVowels * kTrails;

inline const Run& run_of(Code code) {
  if (code < 0 || code >= 0x110000) code = 0x10FFFF;
  return *std::prev(std::ranges::upper_bound(kRuns, code, {}, &Run::first));
}

// Returns the character that the two characters compose to; 0 if they do not compose.
inline Code composed(Code first, Code second) {
  if (first >= kLead && first < kLead + 19 && second >= kVowel && second < kVowel + kVowels) return kHangul + ((first - kLead) * kVowels + second - kVowel) * kTrails;
  if (first >= kHangul && first < kHangul + kSyllables && (first - kHangul) % kTrails == 0 && second > kTrail && second < kTrail + kTrails) return first + second - kTrail;
  for (const Composition& one : kComposed)
    if (one.first == first && one.second == second) return one.code;
  return 0;
}

inline const utf8proc_property_t* get_property(utf8proc_int32_t code) {
  static utf8proc_property_t property;
  const Run& run = run_of(code);
  property.category = run.category;
  property.combining_class = run.order;
  return &property;
}

inline utf8proc_category_t category(utf8proc_int32_t code) { return static_cast<utf8proc_category_t>(run_of(code).category); }

inline utf8proc_int32_t tolower(utf8proc_int32_t code) {
  const auto found = std::ranges::lower_bound(kLowercase, code, {}, &Pair::from);
  return found != std::end(kLowercase) && found->from == code ? found->to : code;
}

inline utf8proc_ssize_t decompose_char(utf8proc_int32_t code, utf8proc_int32_t* to, utf8proc_ssize_t, utf8proc_option_t options, int*) {
  if (options & UTF8PROC_COMPAT) {
    const auto compatible = std::ranges::lower_bound(kCompatible, code, {}, &CompatibleParts::code);
    if (compatible != std::end(kCompatible) && compatible->code == code) {
      std::copy_n(kCompatibleParts + compatible->first, compatible->count, to);
      return compatible->count;
    }
  }
  if (code >= kHangul && code < kHangul + kSyllables) {
    const Code at = code - kHangul;
    to[0] = kLead + at / (kVowels * kTrails), to[1] = kVowel + at / kTrails % kVowels;
    if (at % kTrails == 0) return 2;
    return to[2] = kTrail + at % kTrails, 3;
  }
  const auto found = std::ranges::lower_bound(kDecomposed, code, {}, &Parts::code);
  if (found == std::end(kDecomposed) || found->code != code) return to[0] = code, 1;
  utf8proc_ssize_t count = 0;
  for (; count < 4 && (count == 0 || found->parts[count] != 0); ++count) to[count] = found->parts[count];
  return count;
}

// Composes two characters. src/models/unicode.cc, the only caller, always passes two.
inline utf8proc_ssize_t normalize_utf32(utf8proc_int32_t* codes, utf8proc_ssize_t count, utf8proc_option_t) {
  const Code code = count == 2 ? composed(codes[0], codes[1]) : 0;
  if (code == 0) return count;
  codes[0] = code;
  return 1;
}

// Returns the number of bytes of the character at `text`, or a number below 1 if the bytes are not UTF-8 (Unicode 15, table 3-7).
inline utf8proc_ssize_t iterate(const utf8proc_uint8_t* text, utf8proc_ssize_t bytes, utf8proc_int32_t* code) {
  *code = -1;
  if (bytes < 1) return 0;
  const Code lead = text[0];
  if (lead < 0x80) return *code = lead, 1;
  const int more = lead >= 0xC2 && lead <= 0xDF ? 1 : (lead & 0xF0) == 0xE0 ? 2 : lead >= 0xF0 && lead <= 0xF4 ? 3 : 0;
  if (more == 0 || bytes <= more) return UTF8PROC_ERROR_INVALIDUTF8;
  Code read = lead & (0x3F >> more);
  for (int i = 1; i <= more; ++i) {
    if ((text[i] & 0xC0) != 0x80) return UTF8PROC_ERROR_INVALIDUTF8;
    read = read << 6 | (text[i] & 0x3F);
  }
  const bool surrogate = read >= 0xD800 && read <= 0xDFFF;
  if ((more == 2 && (read < 0x800 || surrogate)) || (more == 3 && (read < 0x10000 || read > 0x10FFFF))) return UTF8PROC_ERROR_INVALIDUTF8;
  return *code = read, more + 1;
}

inline utf8proc_ssize_t encode_char(utf8proc_int32_t code, utf8proc_uint8_t* to) {
  if (code < 0x80) return to[0] = static_cast<utf8proc_uint8_t>(code), 1;
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  for (int i = more; i > 0; --i, code >>= 6) to[i] = static_cast<utf8proc_uint8_t>(0x80 | (code & 0x3F));
  to[0] = static_cast<utf8proc_uint8_t>((0xF00 >> (more + 1) & 0xFF) | code);
  return more + 1;
}

}  // namespace polyhead::live::tables
