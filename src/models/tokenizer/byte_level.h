// GPT-2's printable alphabet for bytes: each byte is one character, so that merges and vocabularies are text.
#pragma once

#include <cstdint>
#include <optional>

#include "models/tokenizer/aligned_text.h"

namespace polyhead::models {

char32_t byte_character(unsigned char byte);
std::optional<unsigned char> character_byte(char32_t code);  // nullopt if the character does not represent a byte

// Appends the text with each byte as its character of the alphabet. All characters that replace one old character have the span of the old character.
void append_byte_level(AlignedView text, AlignedText& to);

}  // namespace polyhead::models
