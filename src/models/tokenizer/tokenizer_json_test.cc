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
using testing::ElementsAreArray;
using testing::HasSubstr;

Tokenizer load(const json& file) {
  ModelFolder folder;
  folder.write_json("tokenizer.json", file);
  return load_tokenizer(folder.path());
}

json words(std::vector<std::string> pieces) {
  json vocabulary = json::object();
  for (const std::string& piece : pieces) vocabulary[piece] = vocabulary.size();
  json file = R"({"model": {"type": "WordLevel", "unk_token": "?"}, "pre_tokenizer": {"type": "WhitespaceSplit"}})"_json;
  file["model"]["vocab"] = vocabulary;
  return file;
}

json template_part(const char* kind, const std::string& name, int segment) {
  json made;
  made[kind]["id"] = name, made[kind]["type_id"] = segment;
  return made;
}
json special(const std::string& name, int segment) { return template_part("SpecialToken", name, segment); }
json text(const std::string& name, int segment) { return template_part("Sequence", name, segment); }

TEST(TokenizerJson, ATemplateSaysWhereSpecialTokensAndTextsGo) {
  json file = words({"?", "a", "b", "<s>", "</s>", "<x>"});
  file["post_processor"] = R"({"type": "TemplateProcessing", "special_tokens": {"start": {"id": "start", "ids": [3, 5], "tokens": ["<s>", "<x>"]}, "</s>": {"id": "</s>", "ids": [4], "tokens": ["</s>"]}}})"_json;
  file["post_processor"]["single"] = {special("start", 0), text("A", 2)};
  file["post_processor"]["pair"] = {text("B", 1), special("</s>", 3), text("A", 0)};
  const TokenizedText one = load(file).encode("a b");
  EXPECT_THAT(one.ids, ElementsAreArray({3, 5, 1, 2}));
  EXPECT_THAT(one.segments, ElementsAreArray({0, 0, 2, 2}));
  EXPECT_THAT(one.special, ElementsAreArray({true, true, false, false}));
  const TokenizedText two = load(file).encode("a b", "b");
  EXPECT_THAT(two.ids, ElementsAreArray({2, 4, 1, 2}));
  EXPECT_THAT(two.segments, ElementsAreArray({1, 3, 0, 0}));
  EXPECT_THAT(two.texts, ElementsAreArray({1, -1, 0, 0}));
  file["post_processor"]["single"][0] = special("end", 0);
  EXPECT_ERROR(load(file), format, HasSubstr("post_processor.special_tokens.end is missing"));
  file["post_processor"]["single"] = {text("A", 0), text("A", 0)};
  EXPECT_ERROR(load(file), format, HasSubstr("post_processor.single has the text A 2 times"));
  file["post_processor"]["single"] = 5;
  EXPECT_ERROR(load(file), format, HasSubstr("post_processor.single is the number 5; a list is needed"));
}

TEST(TokenizerJson, RobertasPairHasTwoSeparatorsAndOneSegment) {
  json file = words({"?", "a", "b", "<s>", "</s>"});
  file["post_processor"] = R"({"type": "RobertaProcessing", "sep": ["</s>", 4], "cls": ["<s>", 3], "trim_offsets": true, "add_prefix_space": false})"_json;
  const TokenizedText tokens = load(file).encode("a", "b");
  EXPECT_THAT(tokens.ids, ElementsAreArray({3, 1, 4, 4, 2, 4}));
  EXPECT_THAT(tokens.segments, ElementsAreArray({0, 0, 0, 0, 0, 0}));
  EXPECT_THAT(tokens.texts, ElementsAreArray({-1, 0, -1, -1, 1, -1}));
}

TEST(TokenizerJson, WithoutAPostProcessorThePairFollowsTheText) {
  const TokenizedText tokens = load(words({"?", "a", "b"})).encode("a", "b");
  EXPECT_THAT(tokens.ids, ElementsAreArray({1, 2}));
  EXPECT_THAT(tokens.segments, ElementsAreArray({0, 1}));
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
  refuses("normalizer", R"({"type": "Uppercase"})"_json, "tokenizer.json: normalizer.type is 'Uppercase', which is not supported; supported: BertNormalizer, NFC");
  refuses("pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}, {"type": "UnicodeScripts"}]})"_json,
          "tokenizer.json: pre_tokenizer.pretokenizers[1].type is 'UnicodeScripts'");
  refuses("decoder", R"({"type": "CTC", "pad_token": ""})"_json, "decoder.type is 'CTC'");
  refuses("post_processor", R"({"type": "None"})"_json, "post_processor.type is 'None'");
  refuses("model", R"({"type": "Other"})"_json, "model.type is 'Other', which is not supported; supported: BPE, WordPiece, WordLevel, Unigram");
  refuses("normalizer", R"({"type": "NFC", "new": 1})"_json, "normalizer.new is not known; known here: type");
  refuses("later", 1, "tokenizer.json: later is not known");
  refuses("version", "2.0", "version is '2.0'");
  refuses("model", R"({"type": "BPE", "dropout": 0.5, "vocab": {}, "merges": []})"_json, "model.dropout is 0.5");
  refuses("pre_tokenizer", R"({"type": "Split", "pattern": {"String": "a"}, "behavior": "Dropped", "invert": false})"_json, "behavior is 'Dropped'; it must be one of Removed, Isolated");
  refuses("pre_tokenizer", R"({"type": "Metaspace", "replacement": "ab"})"_json, "replacement is \"ab\"; one character is needed", ErrorCode::format);
  refuses("pre_tokenizer", R"({"type": "Metaspace", "replacement": "_", "add_prefix_space": false})"_json, "prepend_scheme is not 'never'", ErrorCode::format);
  refuses("pre_tokenizer", R"({"type": "FixedLength", "length": 0})"_json, "length is 0", ErrorCode::format);
  refuses("normalizer", R"({"type": "Strip"})"_json, "normalizer.strip_left is missing", ErrorCode::format);
  refuses("normalizer", "NFC", "normalizer is \"NFC\"; an object is needed", ErrorCode::format);
}

TEST(TokenizerJson, PatternsThatDependOnTheVersionOfUnicodeAreRefused) {
  const auto split = [](const std::string& pattern) {
    json file = words({"?", "a"});
    file["pre_tokenizer"] = R"({"type": "Split", "behavior": "Isolated", "invert": false})"_json;
    file["pre_tokenizer"]["pattern"]["Regex"] = pattern;
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
    file["model"]["vocab"] = R"({"?": 0})"_json;
    file["model"]["vocab"]["a"] = id;
    EXPECT_ERROR(load(file), format, HasSubstr("tokenizer.json: model.vocab: the id of \"a\" is")) << id;
  }
  file["model"]["vocab"] = R"({"?": 1, "a": 1})"_json;
  EXPECT_ERROR(load(file), format, HasSubstr("gives the id 1 to \"?\" and to \"a\""));
  file["model"]["vocab"] = vocabulary;
  const auto with_added = [&](const json& added) {
    file["added_tokens"] = added;
    return file;
  };
  EXPECT_EQ(load(with_added(R"([{"id": 2, "content": "b"}])"_json)).find("b"), 2);
  EXPECT_EQ(load(with_added(R"([{"id": 2, "content": "b"}])"_json)).id_limit(), 3);
  EXPECT_ERROR(load(with_added(R"([{"id": 3, "content": "b"}])"_json)), format, HasSubstr("added_tokens[0].id is 3; after 2 pieces and the added tokens before it, `tokenizers` gives \"b\" the id 2"));
  EXPECT_ERROR(load(with_added(R"([{"id": 0, "content": "a"}])"_json)), format, HasSubstr("\"a\" has id 0, but the vocabulary gives it 1"));
  EXPECT_ERROR(load(with_added(R"([{"id": 0, "content": "b"}])"_json)), format, HasSubstr("\"b\" has id 0, which is \"?\""));
  EXPECT_ERROR(load(with_added(R"([{"id": "four", "content": "b"}])"_json)), format, HasSubstr("added_tokens[0].id is \"four\"; an integer below 2^63 is needed"));
  EXPECT_ERROR(load(with_added(R"([{"id": 2, "content": "b"}, {"id": 3, "content": "b"}])"_json)), format, HasSubstr("occurs twice"));
}

TEST(TokenizerJson, MergesAreStringsOrPairsOfTheVocabulary) {
  json file = R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "a b": 3}, "merges": ["#version: 0.2", "a b"]}})"_json;
  EXPECT_THAT(load(file).encode("abab").ids, ElementsAreArray({2, 2}));
  file["model"]["merges"] = R"([["a", "b"]])"_json;
  EXPECT_THAT(load(file).encode("aab").ids, ElementsAreArray({0, 2}));
  file["model"].erase("type");  // old files have no type
  EXPECT_THAT(load(file).encode("aab").ids, ElementsAreArray({0, 2}));
  file["model"]["merges"] = R"(["a b c"])"_json;
  EXPECT_ERROR(load(file), format, HasSubstr("model.merges[0] is \"a b c\"; it must be two pieces"));
  file["model"]["merges"] = R"(["b a"])"_json;
  EXPECT_ERROR(load(file), format, HasSubstr("model.merges[0]: \"ba\" is not in the vocabulary"));
  file["model"]["merges"] = R"([7])"_json;
  EXPECT_ERROR(load(file), format, HasSubstr("model.merges[0] is neither"));
}

TEST(TokenizerJson, UnigramsScoresAndUnknownIdAreChecked) {
  json file = R"({"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], ["a", -1.5], ["aa", -2]]}})"_json;
  EXPECT_THAT(load(file).encode("aa").ids, ElementsAreArray({2}));
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
    file["normalizer"] = R"({"type": "Precompiled"})"_json;
    file["normalizer"]["precompiled_charsmap"] = base64;
    return file;
  };
  EXPECT_ERROR(load(with("AAA")), format, HasSubstr("normalizer.precompiled_charsmap has 3 characters of base64"));
  EXPECT_ERROR(load(with("AA*A")), format, HasSubstr("a character at 2 that is not base64"));
  EXPECT_ERROR(load(with("AAA=")), format, HasSubstr("has 2 bytes"));
  EXPECT_ERROR(load(with("AAAAAA==")), format, HasSubstr("a trie of 0 bytes"));
  EXPECT_ERROR(load(with("BAAAAAAAAAD/")), format, HasSubstr("not UTF-8"));
  EXPECT_ERROR(load(with("/////wAAAAA=")), format, HasSubstr("a trie of 4294967295 bytes"));
  // The trie of the character map has one unit, whose offset points behind the array, so no character is found in it.
  EXPECT_THAT(load(with("BAAAAAAEAABh")).encode("a").ids, ElementsAreArray({1}));
}

TEST(TokenizerJson, DeepNestingIsRefused) {
  json nested = R"({"type": "NFC"})"_json;
  for (int i = 0; i < 40; ++i) {
    json outer = R"({"type": "Sequence", "normalizers": []})"_json;
    outer["normalizers"].push_back(nested);
    nested = outer;
  }
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
