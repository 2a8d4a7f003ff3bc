#include "text_layout.h"

#include <gmock/gmock.h>

namespace polyhead::app {
namespace {

TEST(Printable, KeepsWordsAndReplacesControlCharacters) {
  EXPECT_EQ(printable("naïve 東京"), "naïve 東京");
  EXPECT_EQ(printable("a\x1b[31mb"), "a\uFFFD[31mb");
  EXPECT_EQ(printable("a\nb\tc"), "a\uFFFDb\uFFFDc");
  EXPECT_EQ(printable("a\u202Eb"), "a\uFFFDb") << "a right-to-left override would reorder the line";
}

TEST(Printable, ReplacesBytesThatAreNotUtf8) { EXPECT_EQ(printable("a\xff\xc3z"), "a\uFFFD\uFFFDz"); }

TEST(Columns, CountsWhatATerminalShows) {
  EXPECT_EQ(columns("fox"), 3u);
  EXPECT_EQ(columns("東京"), 4u);
  EXPECT_EQ(columns("e\u0301"), 1u) << "a combining accent takes no column";
  EXPECT_EQ(columns(""), 0u);
}

TEST(Characters, KeepAccentsWithTheirLetters) { EXPECT_THAT(characters("e\u0301a"), testing::ElementsAre("e\u0301", "a")); }

TEST(Clip, MarksWhatIsLeftOut) {
  EXPECT_EQ(clip("jumps", 5), "jumps");
  EXPECT_EQ(clip("jumps", 4), "jum…");
  EXPECT_EQ(clip("jumps", 1), "…");
  EXPECT_EQ(clip("jumps", 0), "");
  EXPECT_EQ(clip("東京都", 4), "東…") << "half of a wide character cannot be shown";
}

TEST(ClipWords, CutsBetweenWords) {
  EXPECT_EQ(clip_words("the fox jumps", 13), "the fox jumps");
  EXPECT_EQ(clip_words("the fox jumps", 12), "the fox …");
  EXPECT_EQ(clip_words("the fox jumps", 8), "the …") << "with the ellipsis at most 8 columns";
  EXPECT_EQ(clip_words("東京都", 4), "東…") << "no space to cut at";
}

TEST(Fit, TheResultHasExactlyTheGivenWidth) {
  for (const char* word : {"", "a", "fox", "jumps", "東京都", "e\u0301"})
    for (std::size_t width = 1; width < 9; ++width) EXPECT_EQ(columns(fit(word, width)), width) << word << " in " << width;
}

TEST(Aligned, ColumnsAreAsWideAsTheirWidestCell) {
  EXPECT_THAT(aligned({{"a", "1", "東京 "}, {"東京", "234", "b"}}, 1), testing::ElementsAre("a       1  東京 ", "東京  234  b"));
  EXPECT_TRUE(aligned({}).empty());
}

TEST(Wrap, BreaksAtSpacesOnly) {
  EXPECT_EQ(wrap("one two three", 7), "one two\nthree\n");
  EXPECT_EQ(wrap("one two three", 9, 2), "  one two\n  three\n");
  EXPECT_EQ(wrap("incomprehensible it is", 5), "incomprehensible\nit is\n");
}

TEST(Hang, AWideHeadHasALineOfItsOwn) {
  EXPECT_EQ(hang("ab", "one two three", 4, 11), "ab  one two\n    three\n");
  // A head that fills its column exactly is joined to the text: hang() adds no space, so the head must end in spaces itself.
  EXPECT_EQ(hang("abcd", "one", 4, 11), "abcdone\n");
  EXPECT_EQ(hang("abcde", "one", 4, 11), "abcde\n    one\n");
  EXPECT_EQ(hang("ab", "", 4, 11), "ab\n");
}

TEST(Wrap, KeepsLineEnds) { EXPECT_EQ(wrap("a\n\nb\n", 80), "a\n\nb\n"); }

}  // namespace
}  // namespace polyhead::app
