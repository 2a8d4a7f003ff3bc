// Tests single steps of normalisers, pre-tokenisers, post-processors and decoders: their results, and the spans of the results in the text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/test_error_matcher.h"
#include "models/tokenizer/added_tokens.h"
#include "models/tokenizer/decoder.h"
#include "models/tokenizer/grapheme.h"
#include "models/tokenizer/normalizer.h"
#include "models/tokenizer/post_processor.h"
#include "models/tokenizer/pre_tokenizer.h"

namespace polyhead::models {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;

std::string normal(std::string_view text, const NormalizerStep& step) { return normalize(align_utf8(text).text, {step}).bytes; }

std::vector<ByteSpan> normal_spans(std::string_view text, const NormalizerStep& step) { return normalize(align_utf8(text).text, {step}).spans; }

std::vector<std::string> words(std::string_view text, const std::vector<PreTokenizerStep>& steps) {
  const Words split = split_words(align_utf8(text).text, steps);
  std::vector<std::string> result;
  for (const ByteSpan& word : split.words) result.push_back(split.text.bytes.substr(word.first, word.last - word.first));
  return result;
}

std::vector<ByteSpan> word_spans(std::string_view text, const std::vector<PreTokenizerStep>& steps) {
  const Words split = split_words(align_utf8(text).text, steps);
  std::vector<ByteSpan> result;
  for (const ByteSpan& word : split.words) result.push_back(span_of(split.text.view(), word.first, word.last));
  return result;
}

TEST(AlignedText, BytesThatAreNotUtf8BecomeOneCharacterEach) {
  const DecodedBytes decoded = align_utf8("a\xe2\x82z");
  EXPECT_EQ(decoded.text.bytes, "a\ufffd\ufffdz");
  EXPECT_EQ(decoded.replaced_bytes, 2);
  EXPECT_EQ(decoded.text.spans[4], (ByteSpan{2, 3}));
}

TEST(NormalForm, ComposesAndDecomposesWithTheBytesOfItsParts) {
  EXPECT_EQ(normal("é", NormalForm{}), "e\u0301");
  EXPECT_THAT(normal_spans("é", NormalForm{}), ElementsAre(ByteSpan{0, 2}, ByteSpan{0, 2}, ByteSpan{0, 2}));
  EXPECT_EQ(normal("e\u0323\u0308o", NormalForm{.composed = true}), "ẹ\u0308o");
  EXPECT_THAT(normal_spans("e\u0301o", NormalForm{.composed = true}), ElementsAre(ByteSpan{0, 1}, ByteSpan{0, 1}, ByteSpan{3, 4}));  // as in the tokenizers package, a composed character has the span of its first part
  EXPECT_EQ(normal("\u1100\u1161\u11a8", NormalForm{.composed = true}), "각");
  EXPECT_EQ(normal("\uc694\u11a7", NormalForm{.composed = true}), "\uc694\u11a7");
  EXPECT_EQ(normal("ﬁ²", NormalForm{.compatible = true}), "fi2");
  EXPECT_EQ(normal("ﬁ²", NormalForm{.composed = true}), "ﬁ²");
  EXPECT_EQ(normal("a\u0301\u0316", NormalForm{}), "a\u0316\u0301");  // the marks have the combining classes 230 and 220
}

TEST(NormalForm, CharactersThatThePackageDoesNotKnowStay) {
  EXPECT_EQ(normal("\U00011938", NormalForm{}), "\U00011938");  // decomposes in Unicode 13 and later; the tokenizers package has older tables
  EXPECT_EQ(normal("\U00011935\U00011930", NormalForm{.composed = true}), "\U00011935\U00011930");
}

TEST(Normalizer, EachStepDoesWhatItsNameSays) {
  EXPECT_EQ(normal("ÀİΣ", Lowercase{}), "ài\u0307σ");
  EXPECT_EQ(normal("a\u0301b\u0903", StripAccents{}), "ab");
  EXPECT_EQ(normal(" \u3000a b\u2028", StripEnds{}), "a b");
  EXPECT_EQ(normal(" a ", StripEnds{.left = false}), " a");
  EXPECT_EQ(normal("a", Prepend{"▁"}), "▁a");
  EXPECT_EQ(normal("", Prepend{"▁"}), "");
  EXPECT_EQ(normal("a é", ByteLevelText{}), "aĠÃ©");
  EXPECT_EQ(normal("a\x01\t\u200b\u2581z", Nmt{}), "a   z");
  EXPECT_EQ(normal("É\u200b我", BertNormalizer{}), "e 我 ");
  EXPECT_EQ(normal("a  b", ReplaceMatches{Regex(" {2,}", "test"), "_"}), "a_b");
  EXPECT_THAT(normal_spans("a  b", ReplaceMatches{Regex(" {2,}", "test"), "_"}), ElementsAre(ByteSpan{0, 1}, ByteSpan{2, 3}, ByteSpan{3, 4}));
  EXPECT_EQ(normal("a.b", ReplaceMatches{Regex::literal(".", "test"), ""}), "ab");
}

TEST(Normalizer, StepsThatMakeATextTooLongAreAnError) {
  const NormalizerStep twice = ReplaceMatches{Regex("a", "test"), "aa"};
  const std::string text(1000, 'a');
  EXPECT_EQ(normalize(align_utf8(text).text, std::vector<NormalizerStep>(10, twice)).bytes.size(), 1'024'000u);
  EXPECT_ERROR(normalize(align_utf8(text).text, std::vector<NormalizerStep>(40, twice)), invalid_argument,
               testing::HasSubstr("normalizer: step 11 (Replace) makes 1000 bytes of text longer than 1112576 bytes"));
  EXPECT_ERROR(normal(text, ReplaceMatches{Regex("a", "test"), std::string(1'000'000, 'b')}), invalid_argument, testing::HasSubstr("step 1 (Replace)"));
  EXPECT_ERROR(normalize(align_utf8("\xff").text, std::vector<NormalizerStep>(40, ByteLevelText{})), invalid_argument, testing::HasSubstr("(ByteLevel)"));
}

TEST(Grapheme, ClustersEndWhereUnicodeSaysSo) {
  const auto ends = [](std::string_view text) {
    std::vector<std::size_t> result;
    for (std::size_t at = 0; at < text.size();) result.push_back(at = cluster_end(text, at));
    return result;
  };
  EXPECT_THAT(ends("ab"), ElementsAreArray({1, 2}));
  EXPECT_THAT(ends("\r\n\n"), ElementsAreArray({2, 3}));
  EXPECT_THAT(ends("a\u0301\u0302b"), ElementsAreArray({5, 6}));
  EXPECT_THAT(ends("\n\u0301"), ElementsAreArray({1, 3}));
  EXPECT_THAT(ends("\u1100\u1161\u11a8\uac00"), ElementsAreArray({9, 12}));
  EXPECT_THAT(ends("\u0600a"), ElementsAreArray({3}));
  EXPECT_THAT(ends("©\u200d©a"), ElementsAreArray({7, 8}));
  EXPECT_THAT(ends("a\u200d©"), ElementsAreArray({4, 6}));
  EXPECT_THAT(ends("क\u094dषa"), ElementsAreArray({9, 10}));
}

TEST(PreTokenizer, DelimitersAreRemovedIsolatedOrMerged) {
  const auto split = [](Delimiters delimiters) { return words("-a--b", {SplitAtPattern{Regex("-", "test"), delimiters}}); };
  EXPECT_THAT(split(Delimiters::removed), ElementsAreArray({"a", "b"}));
  EXPECT_THAT(split(Delimiters::isolated), ElementsAreArray({"-", "a", "-", "-", "b"}));
  EXPECT_THAT(split(Delimiters::merged_with_previous), ElementsAreArray({"-", "a-", "-", "b"}));
  EXPECT_THAT(split(Delimiters::merged_with_next), ElementsAreArray({"-a", "-", "-b"}));
  EXPECT_THAT(split(Delimiters::contiguous), ElementsAreArray({"-", "a", "--", "b"}));
  EXPECT_THAT(words("-a--b", {SplitAtPattern{Regex("[ab]", "test"), Delimiters::removed, true}}), ElementsAreArray({"a", "b"}));
}

TEST(PreTokenizer, EachStepDoesWhatItsNameSays) {
  EXPECT_THAT(words("it's 3.5!", {SplitWordsAndSymbols{}}), ElementsAreArray({"it", "'", "s", "3", ".", "5", "!"}));
  EXPECT_THAT(words("a1½b", {SplitAtClass{CharClass::numeric, Delimiters::isolated}}), ElementsAreArray({"a", "1", "½", "b"}));
  EXPECT_THAT(words("abcde", {SplitByLength{2}}), ElementsAreArray({"ab", "cd", "e"}));
  EXPECT_THAT(words("a_b", {SplitAtCharacter{'_'}}), ElementsAreArray({"a", "b"}));
  EXPECT_THAT(words("a b  c", {Metaspace{}}), ElementsAreArray({"▁a", "▁b", "▁", "▁c"}));
  EXPECT_THAT(words("a b", {Metaspace{.split = false}}), ElementsAreArray({"▁a▁b"}));
  EXPECT_THAT(words("a b", {Metaspace{.prepend = PrependScheme::never}}), ElementsAreArray({"a", "▁b"}));
  EXPECT_THAT(words("Hey you're", {ByteLevelWords{.pattern = {gpt2_pattern()}}}), ElementsAreArray({"ĠHey", "Ġyou", "'re"}));
  EXPECT_THAT(words("a  b", {ByteLevelWords{.add_prefix_space = false, .pattern = {gpt2_pattern()}}}), ElementsAreArray({"a", "Ġ", "Ġb"}));
  EXPECT_THAT(word_spans("a é", {ByteLevelWords{.pattern = {gpt2_pattern()}}}), ElementsAre(ByteSpan{0, 1}, ByteSpan{1, 4}));
}

TEST(PreTokenizer, StepsThatMakeATextTooLongAreAnError) {
  EXPECT_ERROR(words("é", std::vector<PreTokenizerStep>(40, ByteLevelWords{.add_prefix_space = false, .pattern = {}})), invalid_argument, testing::HasSubstr("(ByteLevel)"));
}

TEST(PreTokenizer, PatternsMatchCharactersNewerThanOnigurumaByTheirClass) {
  EXPECT_THAT(words("a\u1C8Ab \U0002EBF0", {SplitAtPattern{Regex("\\p{L}+", "test"), Delimiters::isolated}}), ElementsAreArray({"a\u1C8Ab", " ", "\U0002EBF0"}));
  EXPECT_THAT(words("\U0002EBF0a", {SplitAtPattern{Regex("\\p{Han}", "test"), Delimiters::isolated}}), ElementsAreArray({"\U0002EBF0", "a"}));
}

TEST(Regex, EmptyMatchesAreFoundOncePerPlace) {
  const auto starts = [](std::string_view pattern, std::string_view text) {
    std::vector<std::size_t> result;
    for (const Match& match : Regex(pattern, "test").split(text))
      if (match.matches) result.push_back(match.first);
    return result;
  };
  EXPECT_THAT(starts("b*", "abé"), ElementsAreArray({0, 1, 4}));  // an empty match directly after "b" is left out
  EXPECT_THAT(starts("^", "ab"), ElementsAreArray({0}));
  EXPECT_TRUE(starts("x", "").empty());
}

TEST(Regex, APatternThatBacktracksTooOftenIsAnError) {
  EXPECT_ERROR(Regex("(?:a|aa)+c", "test").split(std::string(60, 'a') + "bc"), invalid_argument, testing::HasSubstr("test: Oniguruma cannot search the text: retry-limit"));
}

TEST(Regex, APatternOfTooManyGroupsIsAnError) {
  const auto nested = [](int groups) {
    std::string pattern;
    for (int i = 0; i < groups; ++i) pattern += '(';
    pattern += 'a';
    for (int i = 0; i < groups; ++i) pattern += ")*";
    return pattern;
  };
  EXPECT_NO_THROW(Regex(nested(64), "test"));
  EXPECT_ERROR(Regex(nested(65), "test"), unsupported, testing::HasSubstr("more than 64 groups"));
  EXPECT_NO_THROW(Regex::literal(std::string(1000, '('), "test"));
}

TEST(AddedTokens, ATokenTakesTheSpaceWithWhichTheNextOneBegins) {
  const AddedToken first{.content = "<a>", .strip_right = true}, second{.content = " b"};
  const AddedTokenFinder finder({{&first, "<a>"}, {&second, " b"}});
  const std::vector<Section> sections = finder.split("<a> bc");
  ASSERT_EQ(sections.size(), 3u);
  EXPECT_EQ(sections[0].last, 4u);
  EXPECT_EQ(sections[1].token, &second);
  EXPECT_EQ(sections[1].first, 3u);
  EXPECT_EQ(sections[2].first, 5u);
}

TEST(AddedTokens, ATokenInsideTheSpaceThatTheOneBeforeTookIsNotFound) {
  const AddedToken first{.content = "A", .strip_right = true}, second{.content = " ", .strip_left = true};
  const AddedTokenFinder finder({{&first, "A"}, {&second, " "}});
  const std::vector<Section> sections = finder.split("A   b ");
  ASSERT_EQ(sections.size(), 4u);
  EXPECT_EQ(sections[0].token, &first);
  EXPECT_EQ(sections[0].last, 4u);
  EXPECT_EQ(sections[1].token, &second);  // " " matches the third space, which already belongs to "A", so the section is empty
  EXPECT_EQ(sections[1].first, 4u);
  EXPECT_EQ(sections[1].last, 4u);
  EXPECT_EQ(sections[2].token, nullptr);
  EXPECT_EQ(sections[3].token, &second);
  EXPECT_EQ(sections[3].first, 5u);
  for (const Section& section : finder.split("A   ")) EXPECT_LE(section.first, section.last);
}

TEST(PostProcessor, SpansLoseTheSpacesOfTheirPieces) {
  const auto trimmed = [](const std::string& piece, ByteSpan span, bool add_prefix_space, std::string_view source) {
    std::vector<TextToken> tokens{{.id = 0, .piece = "x", .span = {}, .text = 0}, {.id = 1, .piece = piece, .span = span, .text = 0}};
    return models::post_process({tokens}, {source}, {TrimSpans{add_prefix_space}})[1].span;
  };
  EXPECT_EQ(trimmed("Ġa", {1, 3}, true, "x a"), (ByteSpan{2, 3}));
  EXPECT_EQ(trimmed("Ġa", {0, 1}, true, "a"), (ByteSpan{0, 1}));  // the tokenizer added the space; it is not in the text
  EXPECT_EQ(trimmed("Ġa", {0, 2}, false, " a"), (ByteSpan{1, 2}));
  EXPECT_EQ(trimmed("ĠaĠĠ", {1, 5}, true, "x a  "), (ByteSpan{2, 3}));
  EXPECT_EQ(trimmed("ĠĠ", {1, 3}, true, "x  "), (ByteSpan{3, 3}));
}

TEST(Decoder, EachStepUndoesItsPreTokenizer) {
  EXPECT_EQ(decode_pieces({"a", "##b", ",", "c"}, {DecodeWordPiece{}}), "ab, c");
  EXPECT_EQ(decode_pieces({"do", "n't", "I", "'m"}, {DecodeWordPiece{}}), "don't I'm");
  EXPECT_EQ(decode_pieces({"do", "n't"}, {DecodeWordPiece{.cleanup = false}}), "do n't");
  EXPECT_EQ(decode_pieces({"Ġa", "Ã", "©", "<s>我"}, {DecodeByteLevel{}}), " aé<s>我");
  EXPECT_EQ(decode_pieces({"â", "Ĥ", "a", "ÿ"}, {DecodeByteLevel{}}), "\ufffda\ufffd");  // E2 82 begins one UTF-8 sequence, so both bytes become one U+FFFD
  EXPECT_EQ(decode_pieces({"a", "<0xC3>", "<0xA9>", "<0xFF>", "b"}, {DecodeByteFallback{}}), "a\ufffd\ufffd\ufffdb");
  EXPECT_EQ(decode_pieces({"<0xC3>", "<0xa9>", "<0xG0>"}, {DecodeByteFallback{}}), "é<0xG0>");
  EXPECT_EQ(decode_pieces({"▁a", "▁b"}, {DecodeMetaspace{}}), "a b");
  EXPECT_EQ(decode_pieces({"▁a", "▁b"}, {DecodeMetaspace{.drop_first = false}}), " a b");
  EXPECT_EQ(decode_pieces({"a</w>", "b</w>"}, {DecodeEndSuffix{}}), "a b");
  EXPECT_EQ(decode_pieces({"  a ", " b"}, {FusePieces{}, StripCharacter{' ', 1, 9}}), " a  b");
  EXPECT_EQ(decode_pieces({"a_b", "_"}, {ReplaceMatches{Regex("_", "test"), "-"}}), "a-b-");
  EXPECT_EQ(decode_pieces({"a", "b"}, {}), "a b");
}

TEST(Decoder, StepsThatMakeATextTooLongAreAnError) {
  const DecoderStep twice = ReplaceMatches{Regex("a", "test"), "aa"};
  EXPECT_ERROR(decode_pieces({std::string(500, 'a'), std::string(500, 'a')}, std::vector<DecoderStep>(40, twice)), invalid_argument,
               testing::HasSubstr("decoder: step 11 (Replace) makes 1000 bytes of text longer than 1112576 bytes"));
}

}  // namespace
}  // namespace polyhead::models
