#include "models/tokenizer/byte_level.h"

#include <array>
#include <cstddef>

#include "models/tokenizer/utf8.h"

namespace polyhead::models {
namespace {

constexpr bool is_printable(unsigned byte) { return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD); }

struct Alphabet {
  std::array<char32_t, 256> characters{};
  std::array<std::int16_t, 0x144> bytes{};  // -1: no byte

  constexpr Alphabet() {
    bytes.fill(-1);
    char32_t next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) {
      characters[byte] = is_printable(byte) ? static_cast<char32_t>(byte) : next++;
      bytes[characters[byte]] = static_cast<std::int16_t>(byte);
    }
  }
};

constexpr Alphabet kAlphabet;

}  // namespace

char32_t byte_character(unsigned char byte) { return kAlphabet.characters[byte]; }

std::optional<unsigned char> character_byte(char32_t code) {
  if (code >= kAlphabet.bytes.size() || kAlphabet.bytes[code] < 0) return std::nullopt;
  return static_cast<unsigned char>(kAlphabet.bytes[code]);
}

void append_byte_level(AlignedView text, AlignedText& to) {
  for (std::size_t at = 0; at < text.bytes.size();) {
    const std::size_t last = char_at(text.bytes, at).last;
    const ByteSpan span = text.spans[at];
    for (; at < last; ++at) to.append(byte_character(static_cast<unsigned char>(text.bytes[at])), span);
  }
}

}  // namespace polyhead::models
