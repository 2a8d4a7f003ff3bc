// Functions that step through UTF-8 which is known to be valid.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace polyhead::models {

struct Utf8Char {
  char32_t code;
  std::size_t last;  // where the next character begins
};

inline Utf8Char char_at(std::string_view bytes, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(bytes[i])); };
  const char32_t lead = byte(at);
  if (lead < 0x80) return {lead, at + 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(at + 1) & 0x3F), at + 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | (byte(at + 1) & 0x3F) << 6 | (byte(at + 2) & 0x3F), at + 3};
  return {(lead & 0x07) << 18 | (byte(at + 1) & 0x3F) << 12 | (byte(at + 2) & 0x3F) << 6 | (byte(at + 3) & 0x3F), at + 4};
}

// Returns the character that ends before `last`, and where it begins. `last` is not 0.
inline Utf8Char char_before(std::string_view bytes, std::size_t last) {
  std::size_t at = last - 1;
  while (at > 0 && (static_cast<unsigned char>(bytes[at]) & 0xC0) == 0x80) --at;
  return {char_at(bytes, at).code, at};
}

inline void append_char(std::string& bytes, char32_t code) {
  const auto put = [&](char32_t byte) { bytes.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xC0 | code >> 6);
  } else {
    if (code < 0x10000) {
      put(0xE0 | code >> 12);
    } else {
      put(0xF0 | code >> 18);
      put(0x80 | (code >> 12 & 0x3F));
    }
    put(0x80 | (code >> 6 & 0x3F));
  }
  put(0x80 | (code & 0x3F));
}

}  // namespace polyhead::models
