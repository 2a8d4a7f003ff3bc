// Checks that a pattern means the same with Unicode 14 (Oniguruma 6.9.8) and with the version of Unicode in the `tokenizers` package. The pattern may name
// only properties in which a newer character and its stand-in (unicode_tables.inc) agree, and no character that has a stand-in.
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "core/text.h"
#include "io/json.h"
#include "models/tokenizer/char_class.h"
#include "models/tokenizer/regex.h"
#include "models/tokenizer/utf8.h"

namespace polyhead::models {
namespace {

// The allowed properties, in lower case and without spaces, '_' and '-', because Oniguruma compares names in this form: general categories and their groups,
// scripts, and classes of POSIX brackets.
constexpr std::string_view kProperties[] = {
    "l", "m", "n", "p", "s", "z", "c", "lc", "lu", "ll", "lt", "lm", "lo", "mn", "mc", "me", "nd", "nl", "no", "pc", "pd", "ps", "pe", "pi", "pf", "po", "sm", "sc", "sk", "so",
    "zs", "zl", "zp", "cc", "cf", "co", "cn", "cs", "any",
    "letter", "mark", "number", "punctuation", "symbol", "separator", "other", "casedletter", "uppercaseletter", "lowercaseletter", "titlecaseletter", "modifierletter", "otherletter",
    "nonspacingmark", "spacingmark", "enclosingmark", "decimalnumber", "letternumber", "othernumber", "connectorpunctuation", "dashpunctuation", "openpunctuation",
    "closepunctuation", "initialpunctuation", "finalpunctuation", "otherpunctuation", "mathsymbol", "currencysymbol", "modifiersymbol", "othersymbol", "spaceseparator",
    "lineseparator", "paragraphseparator", "control", "format", "privateuse", "unassigned",
    "han", "hiragana", "katakana", "hangul", "bopomofo", "latin", "greek", "hebrew", "thai", "lao", "bengali", "gurmukhi", "gujarati", "oriya",
    "tamil", "telugu", "kannada", "malayalam", "sinhala", "khmer", "tibetan", "georgian", "armenian", "ethiopic", "mongolian",
    "alnum", "alpha", "alphabetic", "ascii", "blank", "cntrl", "digit", "graph", "print", "punct", "space", "whitespace", "word", "xdigit"};

// Regex::split() limits the number of backtracks. Between two backtracks each nested group of a pattern costs a step, so the number of groups is limited, too.
// Published patterns have at most 10 groups.
constexpr std::size_t kMostGroups = 64;

std::string plain_name(std::string_view name) {
  std::string plain;
  for (const char c : name)
    if (c != ' ' && c != '_' && c != '-' && c != '^') plain += c >= 'A' && c <= 'Z' ? static_cast<char>(c + 'a' - 'A') : c;
  return plain;
}

class PatternReader {
 public:
  PatternReader(std::string_view pattern, std::string_view where) : pattern_(pattern), where_(where) {}

  void check() {
    std::size_t groups = 0;
    while (at_ < pattern_.size()) {
      if (pattern_[at_] == '(' && ++groups > kMostGroups) fail(ErrorCode::unsupported, where_, " is a pattern with more than ", kMostGroups, " groups, which are not supported");
      const auto first = next_character();
      if (!first) continue;
      char32_t last = *first;
      // "a-z" is a range in brackets. Outside of brackets it is three characters; checking the range is then unnecessary, but does no harm.
      if (at_ + 1 < pattern_.size() && pattern_[at_] == '-' && pattern_[at_ + 1] != ']') {
        const std::size_t before = at_++;
        if (const auto end = next_character(); end && *end >= *first)
          last = *end;
        else
          at_ = before + 1;
      }
      check_range(*first, last);
    }
  }

 private:
  // Reads one element of the pattern. Returns the character that it stands for, written as it is or as an escape; nullopt for any other element.
  std::optional<char32_t> next_character() {
    if (pattern_[at_] != '\\') {
      for (const std::string_view name : {"[:lower:]", "[:upper:]", "[:^lower:]", "[:^upper:]"})
        if (pattern_.substr(at_).starts_with(name)) fail_property(name);
      const auto [code, last] = char_at(pattern_, at_);
      at_ = last;
      return code;
    }
    if (++at_ == pattern_.size()) return std::nullopt;
    const auto [kind, after] = char_at(pattern_, at_);
    at_ = after;
    if (kind >= 0x80) return kind;
    if (kind == 'p' || kind == 'P') return check_property();
    if (kind == 'X' || kind == 'y' || kind == 'Y')
      fail(ErrorCode::unsupported, where_, " is the pattern ", io::quote(pattern_), " with \\", static_cast<char>(kind), ": grapheme clusters depend on the version of Unicode and are not supported in patterns");
    if (kind == 'u') return hexadecimal(4);
    if (kind != 'x') return std::nullopt;
    if (at_ == pattern_.size() || pattern_[at_] != '{') return hexadecimal(2);
    ++at_;
    const auto code = hexadecimal(8);
    if (at_ < pattern_.size() && pattern_[at_] == '}') {
      ++at_;
    } else {
      fail(ErrorCode::unsupported, where_, " is the pattern ", io::quote(pattern_), ", in which \\x{} does not hold one hexadecimal number");
    }
    return code;
  }

  std::optional<char32_t> hexadecimal(int most) {
    char32_t value = 0;
    for (int digits = 0; digits < most && at_ < pattern_.size(); ++digits, ++at_) {
      const char c = pattern_[at_];
      const int digit = c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1;
      if (digit < 0) break;
      value = value << 4 | static_cast<char32_t>(digit);
    }
    return value;
  }

  std::optional<char32_t> check_property() {
    if (at_ == pattern_.size() || pattern_[at_] != '{') return std::nullopt;
    const std::size_t end = std::min(pattern_.find('}', at_), pattern_.size());
    const std::string_view name = pattern_.substr(at_ + 1, end - at_ - 1);
    at_ = std::min(end + 1, pattern_.size());
    if (std::ranges::find(kProperties, plain_name(name)) == std::end(kProperties)) fail_property(name);
    return std::nullopt;
  }

  [[noreturn]] void fail_property(std::string_view name) const {
    fail(ErrorCode::unsupported, where_, " is the pattern ", io::quote(pattern_), " with the property ", io::quote(name),
         "; general categories, POSIX classes and scripts that are older than Unicode 14, such as Han and Latin, are supported");
  }

  void check_range(char32_t first, char32_t last) const {
    if (last < 0x80) return;
    const auto inside = [&](char32_t code) { return code >= first && code <= last; };
    for (const StandIn& row : stand_ins()) {
      const bool all = inside(row.first) && inside(row.last), some = row.first <= last && first <= row.last;
      if (all != some || all != inside(row.stand_in))
        fail(ErrorCode::unsupported, where_, " is the pattern ", io::quote(pattern_), " with a range from ", static_cast<std::uint32_t>(first), " to ",
             static_cast<std::uint32_t>(last), " (decimal); Unicode 14, which the installed Oniguruma has, lacks some characters of this range");
    }
  }

  std::string_view pattern_, where_;
  std::size_t at_ = 0;
};

}  // namespace

void require_stable_pattern(std::string_view pattern, std::string_view where) { PatternReader(pattern, where).check(); }

}  // namespace polyhead::models
