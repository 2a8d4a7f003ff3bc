#include "models/tokenizer/grapheme.h"

#include <cstdint>

#include "models/tokenizer/char_class.h"
#include "models/tokenizer/utf8.h"

namespace polyhead::models {
namespace {

enum class Hangul : std::uint8_t { none, l, v, t, lv, lvt };

Hangul hangul(char32_t code) {
  const auto in = [&](char32_t first, char32_t last) { return code >= first && code <= last; };
  if (code < 0x1100) return Hangul::none;
  if (in(0x1100, 0x115F) || in(0xA960, 0xA97C)) return Hangul::l;
  if (in(0x1160, 0x11A7) || in(0xD7B0, 0xD7C6)) return Hangul::v;
  if (in(0x11A8, 0x11FF) || in(0xD7CB, 0xD7FB)) return Hangul::t;
  if (in(0xAC00, 0xD7A3)) return (code - 0xAC00) % 28 == 0 ? Hangul::lv : Hangul::lvt;
  return Hangul::none;
}

bool hangul_joins(Hangul before, Hangul after) {
  switch (before) {
    case Hangul::l: return after == Hangul::l || after == Hangul::v || after == Hangul::lv || after == Hangul::lvt;
    case Hangul::lv:
    case Hangul::v: return after == Hangul::v || after == Hangul::t;
    case Hangul::lvt:
    case Hangul::t: return after == Hangul::t;
    case Hangul::none: break;
  }
  return false;
}

// State of the cluster so far, for the rules that look back more than one character.
struct Memory {
  bool pictograph = false;      // the cluster ends in a pictograph, which extending characters may follow
  bool pictograph_zwj = false;  // the cluster ends in a pictograph, perhaps extending characters, and a zero-width joiner
  bool consonant = false;       // the cluster ends in a consonant, which linkers and extending characters may follow
  bool linker = false;          // at least one linker follows that consonant

  void add(char32_t code) {
    constexpr char32_t kZeroWidthJoiner = 0x200D;
    pictograph_zwj = pictograph && code == kZeroWidthJoiner;
    pictograph = is_in(CharClass::cluster_pictograph, code) || (pictograph && is_in(CharClass::cluster_pictograph_extend, code));
    if (is_in(CharClass::cluster_consonant, code)) {
      consonant = true;
      linker = false;
    } else {
      consonant = consonant && is_in(CharClass::cluster_linker_or_extend, code);
      linker = consonant && (linker || is_in(CharClass::cluster_linker, code));
    }
  }
};

bool joins(char32_t before, char32_t after, const Memory& memory) {
  if (before == '\r' && after == '\n') return true;                                                            // GB3
  if (is_in(CharClass::cluster_control, before) || is_in(CharClass::cluster_control, after)) return false;      // GB4, GB5
  if (hangul_joins(hangul(before), hangul(after))) return true;                                                // GB6 to GB8
  if (is_in(CharClass::cluster_joined, after)) return true;                                                    // GB9, GB9a
  if (is_in(CharClass::cluster_prepend, before)) return true;                                                  // GB9b
  if (memory.consonant && memory.linker && is_in(CharClass::cluster_consonant, after)) return true;            // GB9c
  return memory.pictograph_zwj && is_in(CharClass::cluster_pictograph, after);                                 // GB11
}

}  // namespace

std::size_t cluster_end(std::string_view text, std::size_t at) {
  auto [code, last] = char_at(text, at);
  // Most clusters are one ASCII character.
  if (last < text.size() && code < 0x80 && code != '\r' && static_cast<unsigned char>(text[last]) < 0x80) return last;
  Memory memory;
  memory.add(code);
  while (last < text.size()) {
    const auto [next, end] = char_at(text, last);
    if (!joins(code, next, memory)) break;
    memory.add(next);
    code = next;
    last = end;
  }
  return last;
}

}  // namespace polyhead::models
