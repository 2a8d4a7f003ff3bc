#include "known_words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace polyhead::app {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// The words of a text in which single spaces separate words.
models::BytePairText spaced(const std::string& text) {
  models::BytePairText result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    result.word_spans.push_back({at, end});
    at = end + 1;
  }
  return result;
}

MarkedTranslation marked(const std::string& source, const std::string& text, std::vector<std::int64_t> alignment, const std::vector<std::string>& unknown) {
  return mark_unknown_words({.text = text, .source = spaced(source), .target = spaced(text), .alignment = std::move(alignment)}, source, unknown);
}

TEST(MarkUnknownWords, LeavesATranslationOfKnownWordsAsItIs) {
  const MarkedTranslation same = marked("the dog sleeps", "le chien dort ", {0, 1, 2}, {});
  EXPECT_EQ(same.text, "le chien dort ");
  EXPECT_THAT(same.invented, ElementsAre(false, false, false));
  EXPECT_THAT(same.omitted, IsEmpty());
}

TEST(MarkUnknownWords, ReplacesWhatReadsAnUnknownWord) {
  const MarkedTranslation one = marked("the food sleeps", "les cerises dorment", {0, 1, 2}, {"food"});
  EXPECT_EQ(one.text, "les [food] dorment");
  EXPECT_THAT(one.invented, ElementsAre(false, true, false));
  EXPECT_EQ(marked("food", "cerises", {0}, {"food"}).text, "[food]");
  EXPECT_EQ(marked("the food", "les cerises .", {0, 1, -1}, {"food"}).text, "les [food] .");
}

TEST(MarkUnknownWords, OneMarkStandsForNeighboursOfOnePlace) {
  EXPECT_EQ(marked("see the food in", "vois beaucoup de violets dans", {0, 2, 2, 2, 3}, {"food"}).text, "vois [food] dans");
  EXPECT_EQ(marked("see the food in", "vois beaucoup de violets dans", {0, 2, 3, 2, 3}, {"food"}).text, "vois [food] de [food] dans");
  EXPECT_EQ(marked("food food sleeps", "lits cerises dorment", {0, 1, 2}, {"food"}).text, "[food] [food] dorment");
}

TEST(MarkUnknownWords, NamesWhatTheTranslationLeavesOut) {
  const MarkedTranslation part = marked("a qux and a foo sleep", "un lit dort", {0, 1, 5}, {"qux", "foo"});
  EXPECT_EQ(part.text, "un [qux] dort");
  EXPECT_THAT(part.omitted, ElementsAre("foo"));
}

TEST(WordsOutsideGrammar, KnowsWordsThatAlwaysHaveACapital) { EXPECT_THAT(words_outside_grammar({"The", "dog", "I", "Mondays", "January", "food", "Food", "food", "Mouse", "MOUSE"}), ElementsAre("food", "Food", "MOUSE")); }

}  // namespace
}  // namespace polyhead::app
