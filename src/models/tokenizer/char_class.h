// Classes of characters as the `tokenizers` package 0.23 has them. Parts of the package follow different versions of Unicode, so
// scripts/make_unicode_tables.py makes tables of the classes by calling the package. Names such as Digits below are steps of the package.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace polyhead::models {

enum class CharClass : std::uint8_t {
  white_space,
  removed_control,  // what BertNormalizer removes as a control character: most of Cc, Cf, Cn and Co
  punctuation,      // what Punctuation and BertPreTokenizer take for punctuation
  nonspacing_mark,  // what BertNormalizer removes as an accent
  combining_mark,   // what StripAccents removes
  numeric,          // what Digits takes for a digit
  word,             // \w of Whitespace and of added tokens that are single words
  canonical_decomposition,      // has a canonical decomposition and is no Hangul syllable
  compatibility_decomposition,  // has a compatibility decomposition that differs from the canonical one
  reordered,                    // canonical combining class other than 0
  // Grapheme clusters (Unicode Standard Annex 29).
  cluster_joined,   // Extend, SpacingMark, ZWJ: belongs to the cluster before it
  cluster_prepend,
  cluster_control,
  cluster_pictograph,
  cluster_pictograph_extend,  // allowed between a pictograph and a ZWJ
  cluster_consonant,
  cluster_linker,
  cluster_linker_or_extend,
};

bool is_in(CharClass name, char32_t code);

// Maps one character to lower case, by the full mapping without context: U+0130 gives two characters. Returns how many characters of `lower` it has set.
int lower_case(char32_t code, char32_t (&lower)[2]);

// Ranges of characters [first,last] that Unicode 14 does not have, each with a character of Unicode 14 that patterns treat in the same way.
struct StandIn {
  char32_t first, last, stand_in;
};
std::span<const StandIn> stand_ins();  // sorted by `first`
// Returns the stand-in of a character that Unicode 14 does not have, else the character itself.
char32_t stand_in(char32_t code);

}  // namespace polyhead::models
