// Tests the models that split words, with examples worked out by hand.
#include "models/tokenizer/word_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/test_error_matcher.h"
#include "polyhead/models/tokenizer.h"

namespace polyhead::models {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;

Vocabulary vocabulary(const std::vector<std::string>& pieces) {
  std::vector<VocabularyEntry> entries;
  for (const std::string& piece : pieces) entries.push_back({piece, std::ssize(entries)});
  return Vocabulary(std::move(entries), "test");
}

std::vector<std::string> pieces(std::string_view word, const WordModel& model, const Vocabulary& known) {
  std::vector<WordToken> tokens;
  append_tokens(tokens, word, model, known);
  std::vector<std::string> result;
  for (const WordToken& token : tokens) result.push_back(*known.piece(token.id));
  return result;
}

std::vector<ByteSpan> spans(std::string_view word, const WordModel& model, const Vocabulary& known) {
  std::vector<WordToken> tokens;
  append_tokens(tokens, word, model, known);
  std::vector<ByteSpan> result;
  for (const WordToken& token : tokens) result.push_back({token.first, token.last});
  return result;
}

BytePairs byte_pairs(const Vocabulary& known, const std::vector<std::string>& merges) {
  BytePairs model;
  std::int64_t rank = 0;
  for (const std::string& line : merges) {
    const std::size_t space = line.find(' ');
    const std::string first = line.substr(0, space), second = line.substr(space + 1);
    model.merges[BytePairs::pair_key(*known.find(first), *known.find(second))] = {rank++, *known.find(first + second)};
  }
  return model;
}

TEST(Vocabulary, IdsNeedNotBeDense) {
  std::vector<VocabularyEntry> entries{{"b", 7}, {"a", 100}};
  const Vocabulary known(std::move(entries), "test");
  EXPECT_EQ(known.find("a"), 100);
  EXPECT_EQ(*known.piece(7), "b");
  EXPECT_EQ(known.piece(8), nullptr);
  EXPECT_ERROR(Vocabulary({{"a", 1}, {"b", 1}}, "test"), format, HasSubstr("test gives the id 1 to \"a\" and to \"b\""));
  EXPECT_ERROR(Vocabulary({{"a", -1}}, "test"), format, HasSubstr("ids are in [0, 2^31)"));
}

TEST(Vocabulary, OfEqualPiecesTheLastIsFound) {
  const Vocabulary known({{"a", 0}, {"b", 1}, {"a", 2}}, "test");
  EXPECT_EQ(known.find("a"), 2);
  EXPECT_EQ(known.exactly(known.extend(known.all(), "a"))->id, 2);
}

TEST(BytePairs, TheMergeOfLeastRankGoesFirstAndThenTheLeftmost) {
  const Vocabulary known = vocabulary({"a", "b", "c", "bc", "ab", "abc", "aa"});
  EXPECT_THAT(pieces("abc", byte_pairs(known, {"b c", "a b", "ab c"}), known), ElementsAreArray({"a", "bc"}));
  EXPECT_THAT(pieces("abc", byte_pairs(known, {"a b", "b c", "ab c"}), known), ElementsAreArray({"abc"}));
  EXPECT_THAT(pieces("abc", byte_pairs(known, {"b c", "a b", "a bc"}), known), ElementsAreArray({"abc"}));  // after the merge of "b c", the pair "a b" does not exist any more
  EXPECT_THAT(pieces("aaa", byte_pairs(known, {"a a"}), known), ElementsAreArray({"aa", "a"}));
  EXPECT_THAT(spans("aaab", byte_pairs(known, {"a a", "a b"}), known), ElementsAre(ByteSpan{0, 2}, ByteSpan{2, 4}));
}

TEST(BytePairs, AWordThatIsAPieceIsNotSplitIfMergesAreIgnored) {
  const Vocabulary known = vocabulary({"a", "b", "ab"});
  BytePairs model;
  EXPECT_THAT(pieces("ab", model, known), ElementsAreArray({"a", "b"}));
  model.ignore_merges = true;
  EXPECT_THAT(pieces("ab", model, known), ElementsAreArray({"ab"}));
}

TEST(BytePairs, UnknownCharactersAreDroppedOrUnknownOrBytes) {
  const Vocabulary known = vocabulary({"a", "?", "<0xC3>", "<0xA9>"});
  BytePairs model;
  EXPECT_THAT(pieces("aéa", model, known), ElementsAreArray({"a", "a"}));
  EXPECT_THAT(spans("aéa", model, known), ElementsAre(ByteSpan{0, 1}, ByteSpan{1, 2}));  // the package counts bytes as if é were absent
  model.unknown = "?";
  EXPECT_THAT(pieces("aüü", model, known), ElementsAreArray({"a", "?", "?"}));
  model.fuse_unknown = true;
  EXPECT_THAT(spans("aüüa", model, known), ElementsAre(ByteSpan{0, 1}, ByteSpan{1, 5}, ByteSpan{5, 6}));
  model.byte_fallback = true;
  EXPECT_THAT(pieces("aéü", model, known), ElementsAreArray({"a", "<0xC3>", "<0xA9>", "?"}));  // the vocabulary lacks the second byte of ü
  model.unknown = "none";
  EXPECT_ERROR(pieces("ü", model, known), invalid_argument, AllOf(HasSubstr("\"ü\""), HasSubstr("\"none\"")));
}

TEST(BytePairs, PrefixAndSuffixArePartOfPieces) {
  const Vocabulary known = vocabulary({"a", "##b", "##c</w>", "a</w>"});
  BytePairs model;
  model.continuing_prefix = "##";
  model.end_suffix = "</w>";
  EXPECT_THAT(pieces("abc", model, known), ElementsAreArray({"a", "##b", "##c</w>"}));
  EXPECT_THAT(pieces("a", model, known), ElementsAreArray({"a</w>"}));
}

// An algorithm that searches all pairs after each merge would need 10^10 steps.
TEST(BytePairs, AWordOf100000CharactersIsMerged) {
  std::vector<std::string> all{"a"}, merges;
  for (int i = 0; i < 10; ++i) {
    merges.push_back(all.back() + " " + all.back());
    all.push_back(all.back() + all.back());
  }
  const Vocabulary known = vocabulary(all);
  std::vector<WordToken> tokens;
  append_tokens(tokens, std::string(102'400, 'a'), WordModel(byte_pairs(known, merges)), known);
  EXPECT_EQ(tokens.size(), 100u);
}

TEST(Unigram, TheGreatestSumOfScoresWins) {
  const Vocabulary known = vocabulary({"<unk>", "a", "b", "ab", "abb"});
  const Unigram model{.scores = {0, -1, -1, -1.5, -4}, .least_score = -4, .unknown = 0};
  EXPECT_THAT(pieces("abb", model, known), ElementsAreArray({"ab", "b"}));  // the sum is -2.5; "a", "b", "b" has -3 and "abb" has -4
  Unigram equal = model;
  equal.scores = {0, -1, -1, -2, -3};
  EXPECT_THAT(pieces("ab", equal, known), ElementsAreArray({"ab"}));  // of two splits with equal sums, the one whose last piece begins earlier wins
}

TEST(Unigram, NeighbouringUnknownCharactersAreOneToken) {
  const Vocabulary known = vocabulary({"<unk>", "a"});
  Unigram model{.scores = {0, -1}, .least_score = -1, .unknown = 0};
  EXPECT_THAT(pieces("éüaß", model, known), ElementsAreArray({"<unk>", "a", "<unk>"}));
  EXPECT_THAT(spans("éüaß", model, known), ElementsAre(ByteSpan{0, 4}, ByteSpan{4, 5}, ByteSpan{5, 7}));
  model.unknown.reset();
  EXPECT_ERROR(pieces("é", model, known), invalid_argument, HasSubstr("no unk_id"));
}

TEST(Unigram, BytesOfUnknownCharactersHaveTheSpanOfAll) {
  const Vocabulary known = vocabulary({"<unk>", "a", "<0xC3>", "<0xA9>"});
  const Unigram model{.scores = {0, -1, -9, -9}, .least_score = -9, .unknown = 0, .byte_fallback = true};
  EXPECT_THAT(pieces("aéé", model, known), ElementsAreArray({"a", "<0xC3>", "<0xA9>", "<0xC3>", "<0xA9>"}));
  EXPECT_THAT(spans("aé", model, known), ElementsAre(ByteSpan{0, 1}, ByteSpan{1, 3}, ByteSpan{1, 3}));
  EXPECT_THAT(pieces("ü", model, known), ElementsAreArray({"<unk>"}));
}

TEST(WordLevel, AWordIsAPieceOrUnknown) {
  const Vocabulary known = vocabulary({"?", "cat"});
  EXPECT_THAT(pieces("cat", WordLevel{"?"}, known), ElementsAreArray({"cat"}));
  EXPECT_THAT(pieces("dog", WordLevel{"?"}, known), ElementsAreArray({"?"}));
  EXPECT_ERROR(pieces("dog", WordLevel{"!"}, known), invalid_argument, AllOf(HasSubstr("\"dog\""), HasSubstr("\"!\"")));
}

}  // namespace
}  // namespace polyhead::models
