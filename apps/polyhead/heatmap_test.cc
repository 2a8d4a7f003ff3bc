#include "heatmap.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>

#include "polyhead/tensor.h"
#include "support/any_tensor.h"
#include "text_layout.h"

namespace polyhead::app {
namespace {

using testing::HasSubstr;
using testing::Not;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t first = 0; first < text.size();) {
    const std::size_t end = std::min(text.find('\n', first), text.size());
    lines.push_back(text.substr(first, end - first));
    first = end + 1;
  }
  return lines;
}

// Returns the text without its terminal escape sequences.
std::string visible(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b') {
      i = text.find('m', i);
    } else {
      result += text[i];
    }
  }
  return result;
}

struct Case {
  Tensor weights;
  std::vector<std::string> words;

  std::string drawn(std::size_t width, Colour colour = Colour::none) const {
    return render({.weights = weights, .rows = words, .columns = words}, width, colour);
  }
};

// A map of n words "word0", ...: row t has weight 0.7 for key (t + 1) mod n, and equal weights for all other keys.
Case next_word(std::int64_t n) {
  Case c{Tensor(DType::f32, {n, n}), {}};
  for (std::int64_t t = 0; t < n; ++t) {
    for (std::int64_t s = 0; s < n; ++s) c.weights.data<float>()[t * n + s] = s == (t + 1) % n ? 0.7F : 0.3F / static_cast<float>(n - 1);
    c.words.push_back("word" + std::to_string(t));
  }
  return c;
}

TEST(Heatmap, WideCellsShowPercentagesUnderTheWords) {
  const auto lines = lines_of(next_word(4).drawn(80));
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_THAT(lines[0], HasSubstr("word0   word1   word2   word3"));
  EXPECT_EQ(lines[1], "word0 ░░░░ 10 ████ 70 ░░░░ 10 ░░░░ 10");
}

TEST(Heatmap, EveryLineFitsTheWidth) {
  for (const std::int64_t n : {1, 2, 9, 11, 33, 64, 200}) {
    for (std::size_t width = 20; width < 130; width += width < 50 ? 1 : 7) {
      for (const Colour colour : {Colour::none, Colour::indexed256, Colour::rgb}) {
        for (const std::string& line : lines_of(visible(next_word(n).drawn(width, colour))))
          ASSERT_LE(columns(line), width) << n << " words, width " << width << ": " << line;
      }
    }
  }
}

TEST(Heatmap, NarrowCellsHaveWordsWrittenDownward) {
  const auto lines = lines_of(next_word(9).drawn(40));
  EXPECT_EQ(lines[0], "      w  w  w  w  w  w  w  w  w");
  EXPECT_EQ(lines[4], "      0  1  2  3  4  5  6  7  8");
  EXPECT_THAT(lines[5], HasSubstr("word0 ░░ ██ ░░"));
}

TEST(Heatmap, SingleColumnsAreNumbered) {
  const auto lines = lines_of(next_word(30).drawn(45));
  EXPECT_EQ(lines[0], "                    1         2") << "the header shows the tens digit of a column only where it changes";
  EXPECT_EQ(lines[1], "          012345678901234567890123456789");
  EXPECT_THAT(lines[2], HasSubstr(" 0 word0   █"));
}

TEST(Heatmap, ManyKeysBecomeAList) {
  const std::string text = next_word(200).drawn(60);
  EXPECT_THAT(lines_of(text)[3], testing::MatchesRegex("  3 word3 +word4 70"));
  EXPECT_EQ(lines_of(text).size(), 200u);
}

TEST(Heatmap, RowsAttendToColumns) {
  // Only row 0 attends to the last key.
  Case c{Tensor::of<float>({2, 3}, {0, 0, 1, 1, 0, 0}), {}};
  const std::string text = render({.weights = c.weights, .rows = {"first", "second"}, .columns = {"a", "b", "c"}}, 60, Colour::none);
  EXPECT_THAT(lines_of(text)[1], testing::MatchesRegex("first +0 +0 ████100"));
  EXPECT_THAT(lines_of(text)[2], testing::MatchesRegex("second ████100 +0 +0"));
}

TEST(Heatmap, AnyStridesAreRead) {
  const Tensor stored = Tensor::of<float>({2, 2}, {0, 1, 0, 0});
  const std::vector<std::string> words{"a", "b"};
  const std::string upright = render({.weights = stored.view(), .rows = words, .columns = words}, 60, Colour::none);
  const std::string turned = render({.weights = stored.view().transpose(0, 1), .rows = words, .columns = words}, 60, Colour::none);
  EXPECT_NE(upright, turned);
  EXPECT_THAT(lines_of(turned)[2], HasSubstr("100"));
}

TEST(Heatmap, HasNoEscapesWithoutColour) { EXPECT_THAT(next_word(11).drawn(80), Not(HasSubstr("\x1b"))); }

TEST(Heatmap, ColourIsSwitchedOffBeforeEveryLineEnd) {
  for (const Colour colour : {Colour::indexed256, Colour::rgb}) {
    for (const std::string& line : lines_of(next_word(11).drawn(80, colour))) {
      const std::size_t last = line.rfind('\x1b');
      if (last != std::string::npos) {
        EXPECT_EQ(line.substr(last, 4), "\x1b[0m") << line;
      }
    }
  }
  EXPECT_THAT(next_word(11).drawn(80, Colour::indexed256), HasSubstr("\x1b[48;5;"));
  EXPECT_THAT(next_word(11).drawn(80, Colour::rgb), HasSubstr("\x1b[48;2;"));
}

TEST(Heatmap, ControlCharactersInWordsAreReplaced) {
  const Tensor weights = Tensor::of<float>({1, 1}, {1});
  EXPECT_THAT(render({.weights = weights, .rows = {"\x1b[2J"}, .columns = {"\x1b[2J"}}, 60, Colour::none), Not(HasSubstr("\x1b")));
}

TEST(Heatmap, EmptyMapsZerosAndNanAreShown) {
  EXPECT_NO_THROW(render({.weights = during_call(Tensor(DType::f32, {0, 0})), .rows = {}, .columns = {}}, 60, Colour::none));
  const std::vector<std::string> words{"a", "b"};
  EXPECT_THAT(render({.weights = during_call(Tensor(DType::f32, {2, 2})), .rows = words, .columns = words}, 60, Colour::none), HasSubstr("0"));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(render({.weights = during_call(Tensor::of<float>({2, 2}, {nan, 1, 0, 1})), .rows = words, .columns = words}, 60, Colour::none),
              HasSubstr("nan"));
}

}  // namespace
}  // namespace polyhead::app
