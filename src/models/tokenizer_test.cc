#include "polyhead/models/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "models/minilm_test_data.h"
#include "models/test_error_matcher.h"

namespace polyhead::models {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;

const std::vector<std::string> kVocabulary{"[PAD]", "[UNK]", "[CLS]",  "[SEP]", "[MASK]", "the",    "cat",     "##s",
                                           "un",    "##aff", "##able", "i",     "##i",    "\u0307", ",",       ".",
                                           "我",    "σας",   "a",      "##a",   "é",      "e",      "new york"};

Tokenizer tokenizer(BertTokenizerOptions options = {}) { return Tokenizer(kVocabulary, options); }

std::vector<std::string> pieces(std::string_view text, const BertTokenizerOptions& options = {}) {
  auto all = tokenizer(options).encode(text).pieces;
  return {all.begin() + 1, all.end() - 1};
}

TEST(Tokenizer, AgreesOn48AwkwardTextsWithThePublishedOne) {
  const Tokenizer minilm = load_tokenizer(minilm_directory());
  const nlohmann::json expected = read_json(minilm_expected("tokens.json"));
  ASSERT_EQ(expected.size(), 48u);
  for (const auto& text : expected) {
    SCOPED_TRACE(text.at("text").dump());
    const TokenizedText tokens = minilm.encode(text.at("text").get<std::string>());
    EXPECT_EQ(tokens.ids, text.at("ids").get<std::vector<std::int64_t>>());
    EXPECT_EQ(tokens.pieces, text.at("tokens").get<std::vector<std::string>>());
    EXPECT_EQ(tokens.replaced_bytes, 0);
  }
}

TEST(Tokenizer, WordsBecomeTheLongestPiecesFromTheLeft) {
  EXPECT_THAT(pieces("the cats, unaffable."), ElementsAreArray({"the", "cat", "##s", ",", "un", "##aff", "##able", "."}));
}

TEST(Tokenizer, AWordWithAPartThatHasNoPieceIsUnknownAsAWhole) { EXPECT_THAT(pieces("the catsq cat"), ElementsAreArray({"the", "[UNK]", "cat"})); }

TEST(Tokenizer, AWordOf100CharactersIsSplitAndOneOf101IsUnknown) {
  EXPECT_EQ(pieces(std::string(100, 'a')).size(), 100u);
  EXPECT_THAT(pieces(std::string(101, 'a')), ElementsAreArray({"[UNK]"}));
}

TEST(Tokenizer, TheLengthOfAWordCountsCharactersAndNotBytes) {
  std::string word;
  for (int i = 0; i < 100; ++i) word += "Á";
  EXPECT_EQ(pieces(word).size(), 100u);
}

TEST(Tokenizer, LowercasingUsesTheFullMappingWithoutContext) {
  EXPECT_THAT(pieces("ΣΑΣ"), ElementsAreArray({"[UNK]"}));  // Σ becomes σ, also at the end of a word, where Greek has ς
  EXPECT_THAT(pieces("İ", {.strip_accents = false}), ElementsAreArray({"[UNK]"}));
  const std::vector<std::string> dotted{"[UNK]", "[CLS]", "[SEP]", "i\u0307"};
  EXPECT_THAT(Tokenizer(dotted, {.strip_accents = false}).encode("İ").pieces, ElementsAreArray({"[CLS]", "i\u0307", "[SEP]"}));
  EXPECT_THAT(pieces("İ"), ElementsAreArray({"i"}));
}

TEST(Tokenizer, LowercasingStripsAccentsUnlessStripAccentsIsFalse) {
  EXPECT_THAT(pieces("É"), ElementsAreArray({"e"}));
  EXPECT_THAT(pieces("É", {.strip_accents = false}), ElementsAreArray({"é"}));
  EXPECT_THAT(pieces("é", {.lowercase = false}), ElementsAreArray({"é"}));
  EXPECT_THAT(pieces("é", {.lowercase = false, .strip_accents = true}), ElementsAreArray({"e"}));
}

TEST(Tokenizer, MarksThatAreNotStrippedAreInCanonicalOrder) {
  // In canonical order U+302E (class 224) follows U+1D165 (class 216), in whichever order the text has them. Both are spacing marks.
  const std::vector<std::string> ordered{"[UNK]", "[CLS]", "[SEP]", "a\U0001D165\u302E"};
  const TokenizedText tokens = Tokenizer(ordered).encode("a\u302E\U0001D165");
  EXPECT_THAT(tokens.ids, ElementsAreArray({1, 3, 2}));
  EXPECT_EQ(tokens.spans[1], (ByteSpan{0, 8}));
}

TEST(Tokenizer, SyllablesOfHangulAreSplitIntoLetters) {
  const std::vector<std::string> letters{"[UNK]", "[CLS]", "[SEP]", "\u1100", "##\u1161", "##\u11A8"};
  const TokenizedText tokens = Tokenizer(letters).encode("\uAC01");
  EXPECT_THAT(tokens.ids, ElementsAreArray({1, 3, 4, 5, 2}));
  EXPECT_EQ(tokens.spans[3], (ByteSpan{0, 3}));
}

TEST(Tokenizer, EachIdeographIsAWord) {
  EXPECT_THAT(pieces("the我cat"), ElementsAreArray({"the", "我", "cat"}));
  EXPECT_THAT(pieces("the我cat", {.isolate_cjk = false}), ElementsAreArray({"[UNK]"}));
}

TEST(Tokenizer, ControlCharactersVanishAndSeparatorsSplit) {
  EXPECT_THAT(pieces(std::string("c\0a\x1b\xe2\x80\x8bt\xef\xbf\xbd", 10)), ElementsAreArray({"cat"}));
  EXPECT_THAT(pieces("the\tcat\r\nthe\u2028cat\u3000the\u00a0cat"), ElementsAreArray({"the", "cat", "the", "cat", "the", "cat"}));
}

TEST(Tokenizer, TextWithoutWordsIsTheSpecialTokensAlone) {
  for (const std::string_view text : {"", "   ", "\n\t", "\u200b"}) {
    const TokenizedText tokens = tokenizer().encode(text);
    EXPECT_THAT(tokens.ids, ElementsAreArray({2, 3}));
    EXPECT_THAT(tokens.special, ElementsAreArray({true, true}));
  }
}

TEST(Tokenizer, BytesThatAreNotUtf8AreCountedAndReadAsU_FFFD) {
  // The text has a lone continuation byte, a cut sequence, an overlong form, a surrogate, and a code beyond U+10FFFF.
  const TokenizedText tokens = tokenizer().encode(
      "c\x80"
      "a\xe2\x82t \xc0\xaf the\xed\xa0\x80 \xf4\x90\x80\x80 cat\xff");
  EXPECT_EQ(tokens.replaced_bytes, 1 + 2 + 2 + 3 + 4 + 1);
  EXPECT_THAT(tokens.pieces, ElementsAreArray({"[CLS]", "cat", "the", "cat", "[SEP]"}));
  const TokenizedText kept = tokenizer({.clean_text = false}).encode("the \x80");
  EXPECT_THAT(kept.pieces, ElementsAreArray({"[CLS]", "the", "[UNK]", "[SEP]"}));
}

TEST(Tokenizer, SpansAreTheBytesThatATokenCameFrom) {
  const std::string text = "É\u200b  cats 我.";
  const TokenizedText tokens = tokenizer().encode(text);
  std::vector<std::string> sources;
  for (const ByteSpan& span : tokens.spans) sources.push_back(text.substr(span.first, span.last - span.first));
  EXPECT_THAT(tokens.pieces, ElementsAreArray({"[CLS]", "e", "cat", "##s", "我", ".", "[SEP]"}));
  EXPECT_THAT(sources, ElementsAreArray({"", "É", "cat", "s", "我", ".", ""}));
}

TEST(Tokenizer, UnknownWordsKeepTheirCharacters) {
  const TokenizedText tokens = tokenizer({.added_tokens = {{.content = "[UNK]", .id = 1}}}).encode("The Dög, 京 [UNK]", "Q cat");
  EXPECT_THAT(tokens.pieces, ElementsAreArray({"[CLS]", "the", "[UNK]", ",", "[UNK]", "[UNK]", "[SEP]", "[UNK]", "cat", "[SEP]"}));
  EXPECT_THAT(tokens.unknown, ElementsAre(std::pair(2, "Dög"), std::pair(4, "京"), std::pair(7, "Q")));  // piece 5 is not listed: the text itself contains "[UNK]"
}

TEST(Tokenizer, TextsOfAPairHaveOneSegmentAndOneSeparatorEach) {
  const TokenizedText tokens = tokenizer().encode("the cat", "i");
  EXPECT_THAT(tokens.pieces, ElementsAreArray({"[CLS]", "the", "cat", "[SEP]", "i", "[SEP]"}));
  EXPECT_THAT(tokens.segments, ElementsAreArray({0, 0, 0, 0, 1, 1}));
  EXPECT_THAT(tokens.special, ElementsAreArray({true, false, false, true, false, true}));
  EXPECT_EQ(tokens.spans[4], (ByteSpan{0, 1}));
}

TEST(Tokenizer, AddedTokensAreFoundInTheRawText) {
  const BertTokenizerOptions options{.added_tokens = {{.content = "[MASK]", .id = 4}, {.content = "[SEP]", .id = 3}}};
  const TokenizedText tokens = tokenizer(options).encode("the[MASK]cat [SEP] [mask]");
  EXPECT_THAT(tokens.pieces, ElementsAreArray({"[CLS]", "the", "[MASK]", "cat", "[SEP]", "[UNK]", "[UNK]", "[UNK]", "[SEP]"}));
  EXPECT_THAT(tokens.special, ElementsAreArray({true, false, false, false, false, false, false, false, true}));
  EXPECT_EQ(tokens.spans[2], (ByteSpan{3, 9}));
}

TEST(Tokenizer, AddedTokensObeyTheirFlags) {
  const auto with = [](AddedToken token) { return BertTokenizerOptions{.added_tokens = {token}}; };
  EXPECT_THAT(pieces("New  York NEW YORK", with({.content = "NEW YORK", .id = 99, .normalized = true})),
              ElementsAreArray({"[UNK]", "[UNK]", "NEW YORK"}));
  EXPECT_THAT(pieces("cats cat", with({.content = "cat", .id = 6, .single_word = true})), ElementsAreArray({"cat", "##s", "cat"}));
  const TokenizedText stripped =
      tokenizer(with({.content = "[MASK]", .id = 4, .strip_left = true, .strip_right = true})).encode("the  [MASK] cat");
  EXPECT_EQ(stripped.spans[2], (ByteSpan{3, 12}));
}

TEST(Tokenizer, TheLongestOfTheAddedTokensAtOnePlaceIsTaken) {
  const BertTokenizerOptions options{.added_tokens = {{.content = "<a>", .id = 30}, {.content = "<a><a>", .id = 31}}};
  EXPECT_THAT(tokenizer(options).encode("<a><a><a>").ids, ElementsAreArray({2, 31, 30, 3}));
}

TEST(Tokenizer, TooLongATextIsAnErrorThatNamesBothLengths) {
  const EncodeOptions four{.max_length = 4};
  EXPECT_EQ(tokenizer().encode("the cat", four).ids.size(), 4u);
  EXPECT_ERROR(tokenizer().encode("the cat i", four), invalid_argument, AllOf(HasSubstr("5 tokens"), HasSubstr("at most 4")));
  EXPECT_ERROR(tokenizer().encode("the", "cat", {.max_length = 2}), invalid_argument, HasSubstr("max_length is 2"));
}

TEST(Tokenizer, TruncationShortensTheLongerTextFirst) {
  const auto kept = [](std::string_view a, std::string_view b, std::int64_t max) {
    const TokenizedText tokens = tokenizer().encode(a, b, {.max_length = max, .when_too_long = WhenTooLong::longest_first});
    EXPECT_EQ(static_cast<std::int64_t>(tokens.ids.size()), max);
    return std::count(tokens.segments.begin(), tokens.segments.end(), 1) - 1;
  };
  EXPECT_EQ(kept("a a a a a a", "a a", 8), 2);  // there is room for 5 tokens: the texts keep 3 and 2
  EXPECT_EQ(kept("a a", "a a a a a a", 8), 3);
  EXPECT_EQ(kept("a a a a", "a a a a", 8), 3);  // there is room for 5 tokens: if both texts are equally long, the first keeps 2 and the second 3
  EXPECT_EQ(kept("a a a a a", "a a a a", 8), 2);
  EXPECT_EQ(kept("a", "a", 3), 0);
  const TokenizedText one = tokenizer().encode("a a a", {.max_length = 3, .when_too_long = WhenTooLong::longest_first});
  EXPECT_THAT(one.pieces, ElementsAreArray({"[CLS]", "a", "[SEP]"}));
  EXPECT_EQ(one.dropped_tokens, 2);
}

// The test takes 0.05 s. A search that tries every possible end of the next piece would take minutes or days.
TEST(Tokenizer, TimeIsLinearInTheLengthOfAWord) {
  constexpr std::int64_t kLetters = 50'000;
  const auto start = std::chrono::steady_clock::now();
  const Tokenizer tokenizer({"[UNK]", "[CLS]", "[SEP]", "a", "##a", "##aab"}, {.max_word_length = kLetters});
  const std::string word(kLetters, 'a');
  EXPECT_EQ(tokenizer.encode(word).ids.size(), word.size() + 2);
  EXPECT_THAT(tokenizer.encode(word.substr(1) + "c").pieces, ElementsAreArray({"[CLS]", "[UNK]", "[SEP]"}));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(Tokenizer, MalformedVocabulariesAreRefused) {
  EXPECT_ERROR(Tokenizer({"[UNK]", "", "[CLS]", "[SEP]"}), format, HasSubstr("line 2 is empty"));
  EXPECT_ERROR(Tokenizer({"[UNK]", "[CLS]", "[SEP]", "[CLS]"}), format, AllOf(HasSubstr("line 4"), HasSubstr("'[CLS]' of line 2")));
  EXPECT_ERROR(Tokenizer({"[CLS]", "[SEP]"}), format, HasSubstr("unknown token '[UNK]'"));
  EXPECT_ERROR(Tokenizer({"[UNK]", "[SEP]"}), format, HasSubstr("start token '[CLS]'"));
  EXPECT_ERROR(Tokenizer({"[UNK]", "[CLS]"}), format, HasSubstr("separator token '[SEP]'"));
  EXPECT_ERROR(tokenizer({.added_tokens = {{.content = "[MASK]", .id = 7}}}), format, HasSubstr("has id 7"));
  EXPECT_ERROR(tokenizer({.added_tokens = {{.content = "<x>", .id = 6}}}), format, HasSubstr("which is \"cat\""));
}

}  // namespace
}  // namespace polyhead::models
