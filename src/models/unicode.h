// Characters with their byte spans in the original text, and their classes by utf8proc. The classes are for models that polyhead trains; tokenizers of other models use
// the classes of models/tokenizer/char_class.h.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "polyhead/models/tokenizer.h"

namespace polyhead::models {

struct Char {
  char32_t code;
  ByteSpan span;  // place of the character in the original text
};

struct DecodedText {
  std::vector<Char> chars;
  std::int64_t replaced_bytes = 0;
};

// Decodes UTF-8. Each byte that is not part of a well-formed sequence becomes one U+FFFD.
DecodedText decode_utf8(std::string_view text);

bool is_white_space(char32_t code);  // Unicode's White_Space
bool is_punctuation(char32_t code);  // categories P*, and every ASCII symbol
bool is_unassigned_or_control(char32_t code);  // categories C*
bool is_word_character(char32_t code);  // letters, marks, digits, connector punctuation, zero-width joiners

// Returns the canonical decomposition (NFD); each part has the span of the whole character.
std::vector<Char> decompose(std::span<const Char> chars);
// Returns the canonical composition of decomposed characters (NFC); a composed character has the smallest span that covers its parts.
std::vector<Char> compose(std::vector<Char> decomposed);
// Appends the full lowercase mapping without context: a final sigma becomes U+03C3.
void append_lowercase(std::vector<Char>& chars, const Char& c);

}  // namespace polyhead::models
