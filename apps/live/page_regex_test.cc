#include "page_regex.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "page_patterns.h"

namespace polyhead::live {
namespace {

using Parts = std::vector<std::tuple<std::size_t, std::size_t, bool>>;

Parts parts_of(const std::vector<models::Match>& matches) {
  Parts parts;
  for (const auto& [first, last, is_match] : matches) parts.emplace_back(first, last, is_match);
  return parts;
}

TEST(PageRegex, CharacterClassesEqualThoseOfOniguruma) {
  const models::Regex letter(R"(\p{L})", "letters"), number(R"(\p{N})", "numbers"), space(R"(\s)", "space");
  // Each expression matches a single character. So one call tells for every character of a long text whether it matches: a match begins at it.
  constexpr char32_t kCount = 4096;
  for (char32_t begin = 0; begin < 0x110000; begin += kCount) {
    std::string text;
    std::vector<std::pair<char32_t, std::size_t>> places;
    for (char32_t code = begin; code < begin + kCount; ++code) {
      if (code >= 0xD800 && code < 0xE000) continue;
      places.emplace_back(code, text.size());
      models::append_char(text, code);
    }
    const auto compare = [&](const models::Regex& expression, bool (*has)(char32_t)) {
      std::vector<char> matched(text.size(), 0);
      for (const auto& [first, last, is_match] : parts_of(expression.split(text)))
        if (is_match) matched[first] = 1;
      for (const auto& [code, place] : places)
        if (has(code) != (matched[place] != 0)) FAIL() << static_cast<std::uint32_t>(code);
    };
    compare(letter, is_letter), compare(number, is_number), compare(space, is_space);
    if (HasFailure()) return;
  }
}

TEST(PageRegex, SplitsAsOnigurumaDoes) {
  const models::Regex words(app::kWordsOfGpt2, "words"), spaces(app::kSpaces, "spaces"), stops = models::Regex::literal("..", "stops"), nothing = models::Regex::literal("", "nothing");
  const std::vector<std::string> parts{" ", " ", "  ", "a", "É", "'s", "'", "'ll", "'L", "7", "Ⅷ", ".", "..", "\n", "\u00a0", "\u3000", "字", "_", "\u0301", "😀"};
  std::mt19937 random(3);
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (std::size_t count = random() % 9; count > 0; --count) text += parts[random() % parts.size()];
    ASSERT_EQ(parts_of(split_gpt2_words(text)), parts_of(words.split(text))) << text;
    ASSERT_EQ(parts_of(split_at_spaces(text)), parts_of(spaces.split(text))) << text;
    ASSERT_EQ(parts_of(split_at_text(text, "..")), parts_of(stops.split(text))) << text;
    ASSERT_EQ(parts_of(split_at_text(text, "")), parts_of(nothing.split(text))) << text;
  }
}

}  // namespace
}  // namespace polyhead::live
