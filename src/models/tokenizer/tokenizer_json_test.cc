// Tests which tokenizer.json files are read, and the messages for files that are not supported. tests/python/test_tokenizers.py compares ids, spans and texts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/test_error_matcher.h"
#include "models/test_model_folder.h"
#include "polyhead/models/tokenizer.h"

namespace polyhead::models {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

Tokenizer load(const json& file) {
  ModelFolder folder;
  folder.write_json("tokenizer.json", file);
  return load_tokenizer(folder.path());
}

json words(std::vector<std::string> pieces) {
  json vocabulary = json::object();
  for (const std::string& piece : pieces) vocabulary[piece] = vocabulary.size();
  return {{"model", {{"type", "WordLevel"}, {"unk_token", "?"}, {"vocab", vocabulary}}}, {"pre_tokenizer", {{"type", "WhitespaceSplit"}}}};
}

json special(const std::string& name, int segment) { return {{"SpecialToken", {{"id", name}, {"type_id", segment}}}}; }
json text(const std::string& name, int segment) { return {{"Sequence", {{"id", name}, {"type_id", segment}}}}; }

TEST(TokenizerJson, ATemplateSaysWhereSpecialTokensAndTextsGo) {
  json file = words({"?", "a", "b", "<s>", "</s>", "<x>"});
  file["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single", {special("start", 0), text("A", 2)}},
                            {"pair", {text("B", 1), special("</s>", 3), text("A", 0)}},
                            {"special_tokens",
                             {{"start", {{"id", "start"}, {"ids", {3, 5}}, {"tokens", {"<s>", "<x>"}}}}, {"</s>", {{"id", "</s>"}, {"ids", {4}}, {"tokens", {"</s>"}}}}}}};
  const TokenizedText one = load(file).encode("a b");
  EXPECT_THAT(one.ids, ElementsAre(3, 5, 1, 2));
  EXPECT_THAT(one.segments, ElementsAre(0, 0, 2, 2));
  EXPECT_THAT(one.special, ElementsAre(true, true, false, false));
  const TokenizedText two = load(file).encode("a b", "b");
  EXPECT_THAT(two.ids, ElementsAre(2, 4, 1, 2));
  EXPECT_THAT(two.segments, ElementsAre(1, 3, 0, 0));
  EXPECT_THAT(two.texts, ElementsAre(1, -1, 0, 0));
  file["post_processor"]["single"][0] = special("end", 0);
  EXPECT_ERROR(load(file), format, HasSubstr("post_processor.special_tokens.end is missing"));
  file["post_processor"]["single"] = {text("A", 0), text("A", 0)};
  EXPECT_ERROR(load(file), format, HasSubstr("post_processor.single has the text A 2 times"));
  file["post_processor"]["single"] = 5;
  EXPECT_ERROR(load(file), format, HasSubstr("post_processor.single is the number 5; a list is needed"));
}

TEST(TokenizerJson, RobertasPairHasTwoSeparatorsAndOneSegment) {
  json file = words({"?", "a", "b", "<s>", "</s>"});
  file["post_processor"] = {{"type", "RobertaProcessing"}, {"sep", {"</s>", 4}}, {"cls", {"<s>", 3}}, {"trim_offsets", true}, {"add_prefix_space", false}};
  const TokenizedText tokens = load(file).encode("a", "b");
  EXPECT_THAT(tokens.ids, ElementsAre(3, 1, 4, 4, 2, 4));
  EXPECT_THAT(tokens.segments, ElementsAre(0, 0, 0, 0, 0, 0));
  EXPECT_THAT(tokens.texts, ElementsAre(-1, 0, -1, -1, 1, -1));
}

TEST(TokenizerJson, WithoutAPostProcessorThePairFollowsTheText) {
  const TokenizedText tokens = load(words({"?", "a", "b"})).encode("a", "b");
  EXPECT_THAT(tokens.ids, ElementsAre(1, 2));
  EXPECT_THAT(tokens.segments, ElementsAre(0, 1));
}

TEST(TokenizerJson, UnsupportedStepsAreNamedWithTheirPlaceAndTheSupportedOnes) {
  const auto refuses = [](const std::string& stage, const json& content, const std::string& message, ErrorCode code = ErrorCode::unsupported) {
    json file = words({"?", "a"});
    file[stage] = content;
    try {
      load(file);
      ADD_FAILURE() << stage << " " << content;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(message));
      EXPECT_EQ(error.code(), code) << error.what();
    }
  };
  refuses("normalizer", {{"type", "Uppercase"}}, "tokenizer.json: normalizer.type is 'Uppercase', which is not supported; supported: BertNormalizer, NFC");
  refuses("pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {{{"type", "Whitespace"}}, {{"type", "UnicodeScripts"}}}}},
          "tokenizer.json: pre_tokenizer.pretokenizers[1].type is 'UnicodeScripts'");
  refuses("decoder", {{"type", "CTC"}, {"pad_token", ""}}, "decoder.type is 'CTC'");
  refuses("post_processor", {{"type", "None"}}, "post_processor.type is 'None'");
  refuses("model", {{"type", "Other"}}, "model.type is 'Other', which is not supported; supported: BPE, WordPiece, WordLevel, Unigram");
  refuses("normalizer", {{"type", "NFC"}, {"new", 1}}, "normalizer.new is not known; known here: type");
  refuses("later", 1, "tokenizer.json: later is not known");
  refuses("version", "2.0", "version is '2.0'");
  refuses("model", {{"type", "BPE"}, {"dropout", 0.5}, {"vocab", json::object()}, {"merges", json::array()}}, "model.dropout is 0.5");
  refuses("pre_tokenizer", {{"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "Dropped"}, {"invert", false}}, "behavior is 'Dropped'; it must be one of Removed, Isolated");
  refuses("pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "ab"}}, "replacement is \"ab\"; one character is needed", ErrorCode::format);
  refuses("pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "_"}, {"add_prefix_space", false}}, "prepend_scheme is not 'never'", ErrorCode::format);
  refuses("pre_tokenizer", {{"type", "FixedLength"}, {"length", 0}}, "length is 0", ErrorCode::format);
  refuses("normalizer", {{"type", "Strip"}}, "normalizer.strip_left is missing", ErrorCode::format);
  refuses("normalizer", "NFC", "normalizer is \"NFC\"; an object is needed", ErrorCode::format);
}

TEST(TokenizerJson, PatternsThatDependOnTheVersionOfUnicodeAreRefused) {
  const auto split = [](const std::string& pattern) {
    json file = words({"?", "a"});
    file["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
    return file;
  };
  EXPECT_ERROR(load(split("[a")), format, AllOf(HasSubstr("pre_tokenizer.pattern.Regex is the pattern \"[a\""), HasSubstr("premature end of char-class")));
  EXPECT_ERROR(load(split("\\p{Emoji}")), unsupported, HasSubstr("the property \"Emoji\""));
  EXPECT_ERROR(load(split("[[:upper:]]")), unsupported, HasSubstr("[:upper:]"));
  EXPECT_ERROR(load(split("\\X")), unsupported, HasSubstr("grapheme clusters"));
  EXPECT_ERROR(load(split("[\\x{1C80}-\\x{1C8F}]")), unsupported, HasSubstr("a range from 7296 to 7311"));  // U+1C89 exists only since Unicode 16
  EXPECT_ERROR(load(split("\u1C89")), unsupported, HasSubstr("7305"));
  EXPECT_ERROR(load(split("\\\u1C89")), unsupported, HasSubstr("7305"));
  for (const char* pattern : {"\\p{L}+", "\\p{^lu}", "\\P{Han}", "[一-龥぀-ゟ゠-ヿ]+", "[\\u0300-\\u036f]", "[^\\x00-\\x7f]", "\\p{Uppercase_Letter}", "a-é", "\\é", "a\\我"}) EXPECT_NO_THROW(load(split(pattern))) << pattern;
}

TEST(TokenizerJson, IdsThatAreMalformedOrContradictTheVocabularyAreRefused) {
  json file = words({"?", "a"});
  const json vocabulary = file["model"]["vocab"];
  for (const json& id : {json(-1), json(1.5), json("1"), json(std::int64_t{1} << 31), json(nullptr)}) {
    file["model"]["vocab"] = {{"?", 0}, {"a", id}};
    EXPECT_ERROR(load(file), format, HasSubstr("tokenizer.json: model.vocab: the id of \"a\" is")) << id;
  }
  file["model"]["vocab"] = {{"?", 1}, {"a", 1}};
  EXPECT_ERROR(load(file), format, HasSubstr("gives the id 1 to \"?\" and to \"a\""));
  file["model"]["vocab"] = vocabulary;
  const auto with_added = [&](const json& added) {
    file["added_tokens"] = added;
    return file;
  };
  EXPECT_EQ(load(with_added({{{"id", 2}, {"content", "b"}}})).find("b"), 2);
  EXPECT_EQ(load(with_added({{{"id", 2}, {"content", "b"}}})).id_limit(), 3);
  EXPECT_ERROR(load(with_added({{{"id", 3}, {"content", "b"}}})), format, HasSubstr("added_tokens[0].id is 3; after 2 pieces and the added tokens before it, `tokenizers` gives \"b\" the id 2"));
  EXPECT_ERROR(load(with_added({{{"id", 0}, {"content", "a"}}})), format, HasSubstr("\"a\" has id 0, but the vocabulary gives it 1"));
  EXPECT_ERROR(load(with_added({{{"id", 0}, {"content", "b"}}})), format, HasSubstr("\"b\" has id 0, which is \"?\""));
  EXPECT_ERROR(load(with_added({{{"id", "four"}, {"content", "b"}}})), format, HasSubstr("added_tokens[0].id is \"four\"; an integer below 2^63 is needed"));
  EXPECT_ERROR(load(with_added({{{"id", 2}, {"content", "b"}}, {{"id", 3}, {"content", "b"}}})), format, HasSubstr("occurs twice"));
}

TEST(TokenizerJson, MergesAreStringsOrPairsOfTheVocabulary) {
  json file{{"model", {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}, {"a b", 3}}}, {"merges", {"#version: 0.2", "a b"}}}}};
  EXPECT_THAT(load(file).encode("abab").ids, ElementsAre(2, 2));
  file["model"]["merges"] = json::array({json::array({"a", "b"})});
  EXPECT_THAT(load(file).encode("aab").ids, ElementsAre(0, 2));
  file["model"].erase("type");  // old files have no type
  EXPECT_THAT(load(file).encode("aab").ids, ElementsAre(0, 2));
  file["model"]["merges"] = {"a b c"};
  EXPECT_ERROR(load(file), format, HasSubstr("model.merges[0] is \"a b c\"; it must be two pieces"));
  file["model"]["merges"] = {"b a"};
  EXPECT_ERROR(load(file), format, HasSubstr("model.merges[0]: \"ba\" is not in the vocabulary"));
  file["model"]["merges"] = {7};
  EXPECT_ERROR(load(file), format, HasSubstr("model.merges[0] is neither"));
}

TEST(TokenizerJson, UnigramsScoresAndUnknownIdAreChecked) {
  json file{{"model", {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", json::array({json::array({"<unk>", 0}), json::array({"a", -1.5}), json::array({"aa", -2})})}}}};
  EXPECT_THAT(load(file).encode("aa").ids, ElementsAre(2));
  file["model"]["unk_id"] = 3;
  EXPECT_ERROR(load(file), format, HasSubstr("model.unk_id is 3; the vocabulary has 3 pieces"));
  file["model"]["unk_id"] = nullptr;
  EXPECT_ERROR(load(file).encode("b"), invalid_argument, HasSubstr("has no unk_id"));
  file["model"]["vocab"][1] = "a";
  EXPECT_ERROR(load(file), format, HasSubstr("model.vocab[1] is not a piece and its score"));
}

TEST(TokenizerJson, CharsmapsThatAreCutOrLeadNowhereAreRefused) {
  const auto with = [](const std::string& base64) {
    json file = words({"?", "a"});
    file["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", base64}};
    return file;
  };
  EXPECT_ERROR(load(with("AAA")), format, HasSubstr("normalizer.precompiled_charsmap has 3 characters of base64"));
  EXPECT_ERROR(load(with("AA*A")), format, HasSubstr("a character at 2 that is not base64"));
  EXPECT_ERROR(load(with("AAA=")), format, HasSubstr("has 2 bytes"));
  EXPECT_ERROR(load(with("AAAAAA==")), format, HasSubstr("a trie of 0 bytes"));
  EXPECT_ERROR(load(with("BAAAAAAAAAD/")), format, HasSubstr("not UTF-8"));
  EXPECT_ERROR(load(with("/////wAAAAA=")), format, HasSubstr("a trie of 4294967295 bytes"));
  // The trie of the character map has one unit, whose offset points behind the array, so no character is found in it.
  EXPECT_THAT(load(with("BAAAAAAEAABh")).encode("a").ids, ElementsAre(1));
}

TEST(TokenizerJson, DeepNestingIsRefused) {
  json nested{{"type", "NFC"}};
  for (int i = 0; i < 40; ++i) nested = {{"type", "Sequence"}, {"normalizers", {nested}}};
  json file = words({"?", "a"});
  file["normalizer"] = nested;
  EXPECT_ERROR(load(file), format, HasSubstr("64 levels"));
}

TEST(TokenizerJson, DecodingAnIdWithoutATokenIsAnError) {
  const Tokenizer tokenizer = load(words({"?", "a"}));
  EXPECT_EQ(tokenizer.decode(std::vector<std::int64_t>{1, 0, 1}), "a ? a");
  EXPECT_EQ(tokenizer.decode({}), "");
  EXPECT_ERROR(tokenizer.decode(std::vector<std::int64_t>{2}), invalid_argument, HasSubstr("no token with the id 2; ids are below 2"));
  EXPECT_ERROR(tokenizer.decode(std::vector<std::int64_t>{-1}), invalid_argument, HasSubstr("-1"));
}

}  // namespace
}  // namespace polyhead::models
