#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/failing_new.h"
#include "models/test_error_matcher.h"
#include "models/test_model_folder.h"
#include "polyhead/models/tokenizer.h"

namespace polyhead::models {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::string_view kVocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nThe\ncat\n##s\né\n";

json tokenizer_json() {
  return json::parse(R"({
    "added_tokens": [{"id": 4, "content": "[MASK]", "special": true, "single_word": false, "lstrip": true, "rstrip": false, "normalized": false}],
    "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": false, "lowercase": false},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
    "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 4, "vocab": {"[UNK]": 1}}
  })");
}

json bert_template(const std::string& before_pair) {
  const auto special = [](const std::string& id, int type) { return json{{"SpecialToken", {{"id", id}, {"type_id", type}}}}; };
  const auto text = [](const std::string& id, int type) { return json{{"Sequence", {{"id", id}, {"type_id", type}}}}; };
  return {{"type", "TemplateProcessing"},
          {"single", json::array({special("[CLS]", 0), text("A", 0), special("[SEP]", 0)})},
          {"pair", json::array({special("[CLS]", 0), text("A", 0), special(before_pair, 0), text("B", 1), special("[SEP]", 1)})}};
}

TEST(LoadTokenizer, TheVocabularyAloneGivesBertsDefaults) {
  ModelFolder folder;
  folder.write("vocab.txt", kVocabulary);
  EXPECT_THAT(load_tokenizer(folder.path()).encode("The[MASK]Cats é").pieces,
              ElementsAre("[CLS]", "the", "[MASK]", "cat", "##s", "[UNK]", "[SEP]"));
}

TEST(LoadTokenizer, TokenizerConfigIsFollowed) {
  ModelFolder folder;
  folder.write("vocab.txt", kVocabulary);
  folder.write_json("tokenizer_config.json",
                    json{{"do_lower_case", false}, {"strip_accents", nullptr}, {"cls_token", {{"content", "[PAD]"}}}});
  EXPECT_THAT(load_tokenizer(folder.path()).encode("The cats é").pieces, ElementsAre("[PAD]", "The", "cat", "##s", "é", "[SEP]"));
}

TEST(LoadTokenizer, TokenizerJsonIsFollowedBeforeTokenizerConfig) {
  ModelFolder folder;
  folder.write("vocab.txt", kVocabulary);
  folder.write_json("tokenizer_config.json", json{{"do_lower_case", true}});
  folder.write_json("tokenizer.json", tokenizer_json());
  const TokenizedText tokens = load_tokenizer(folder.path()).encode("The  [MASK] é catss cats");
  EXPECT_THAT(tokens.pieces, ElementsAre("[CLS]", "The", "[MASK]", "é", "[UNK]", "cat", "##s", "[SEP]"));  // catss has 5 characters
  EXPECT_EQ(tokens.spans[2], (ByteSpan{3, 11}));
}

TEST(LoadTokenizer, EachSwitchOfTheNormalizerIsRead) {
  const auto pieces = [](json normalizer, const std::string& text) {
    ModelFolder folder;
    folder.write("vocab.txt", "[UNK]\n[CLS]\n[SEP]\né\ne\na我\na\n我\nA\n");
    json file = tokenizer_json();
    if (normalizer.is_object()) normalizer["type"] = "BertNormalizer";
    file["normalizer"] = std::move(normalizer);
    file["added_tokens"] = json::array();
    folder.write_json("tokenizer.json", file);
    auto all = load_tokenizer(folder.path()).encode(text).pieces;
    return std::vector<std::string>(all.begin() + 1, all.end() - 1);
  };
  EXPECT_THAT(pieces(json::object(), "É A"), ElementsAre("e", "a"));
  EXPECT_THAT(pieces({{"strip_accents", false}}, "É"), ElementsAre("é"));
  EXPECT_THAT(pieces({{"strip_accents", true}, {"lowercase", false}}, "é A"), ElementsAre("e", "A"));
  EXPECT_THAT(pieces({{"handle_chinese_chars", false}}, "a我"), ElementsAre("a我"));
  EXPECT_THAT(pieces({{"clean_text", false}}, "a\u200b"), ElementsAre("[UNK]"));
  EXPECT_THAT(pieces(nullptr, "A a我"), ElementsAre("A", "a我"));
}

TEST(LoadTokenizer, BertsTemplateIsReadAndOthersAreRefused) {
  ModelFolder folder;
  folder.write("vocab.txt", kVocabulary);
  json file = tokenizer_json();
  file["post_processor"] = bert_template("[SEP]");
  folder.write_json("tokenizer.json", file);
  EXPECT_THAT(load_tokenizer(folder.path()).encode("the", "cat").ids, ElementsAre(2, 5, 3, 7, 3));
  file["post_processor"] = bert_template("[CLS]");
  folder.write_json("tokenizer.json", file);
  EXPECT_ERROR(load_tokenizer(folder.path()), unsupported, HasSubstr("not the template of BERT"));
  file["post_processor"]["single"] = 5;
  folder.write_json("tokenizer.json", file);
  EXPECT_ERROR(load_tokenizer(folder.path()), format, HasSubstr("post_processor.single is not a list of tokens"));
}

TEST(LoadTokenizer, OtherKindsOfTokenizersAreRefusedByName) {
  const auto message = [](const std::string& section, const char* type) {
    ModelFolder folder;
    folder.write("vocab.txt", kVocabulary);
    json file = tokenizer_json();
    file[section]["type"] = type;
    folder.write_json("tokenizer.json", file);
    EXPECT_ERROR(load_tokenizer(folder.path()), unsupported, AllOf(HasSubstr("tokenizer.json"), HasSubstr(section), HasSubstr(type)));
  };
  message("model", "BPE");
  message("normalizer", "Lowercase");
  message("pre_tokenizer", "Whitespace");
}

TEST(LoadTokenizer, LinesMayEndAsOnWindowsAndTheLastOneNeedNotEnd) {
  ModelFolder folder;
  folder.write("vocab.txt", "[UNK]\r\n[CLS]\r\n[SEP]\r\n\u2028\r\ncat");
  const Tokenizer tokenizer = load_tokenizer(folder.path());
  EXPECT_EQ(tokenizer.vocabulary_size(), 5);
  EXPECT_EQ(tokenizer.find("cat"), 4);
  EXPECT_EQ(tokenizer.find("\u2028"), 3);
  EXPECT_EQ(tokenizer.find("dog"), std::nullopt);
}

TEST(LoadTokenizer, MissingOrMalformedFilesAreErrorsThatNameThem) {
  ModelFolder folder;
  EXPECT_ERROR(load_tokenizer(folder.path()), io, AllOf(HasSubstr("vocab.txt"), HasSubstr("No such file")));
  std::filesystem::create_directory(folder.path() / "vocab.txt");
  EXPECT_ERROR(load_tokenizer(folder.path()), io, HasSubstr("is a directory"));
  std::filesystem::remove(folder.path() / "vocab.txt");
  folder.write("vocab.txt", "");
  EXPECT_ERROR(load_tokenizer(folder.path()), format, HasSubstr("vocab.txt: is empty"));
  folder.write("vocab.txt", "[UNK]\n\n[CLS]\n[SEP]\n");
  EXPECT_ERROR(load_tokenizer(folder.path()), format, HasSubstr("line 2 is empty"));
  folder.write("vocab.txt", "[UNK]\n[CLS]\n");
  EXPECT_ERROR(load_tokenizer(folder.path()), format, HasSubstr("'[SEP]'"));

  folder.write("vocab.txt", kVocabulary);
  for (const std::string_view broken : {std::string_view("{}\0", 3), std::string_view(""), std::string_view("{")}) {
    folder.write("tokenizer.json", broken);
    EXPECT_ERROR(load_tokenizer(folder.path()), format, HasSubstr("tokenizer.json is not JSON at its byte")) << broken;
  }
  for (const std::string_view broken : { "[1,2]", "{\"model\": 3}", "{\"model\": {\"type\": 7}}", "\xff\xfe"}) {
    folder.write("tokenizer.json", broken);
    EXPECT_ERROR(load_tokenizer(folder.path()), format, HasSubstr("tokenizer.json")) << broken;
  }
  json file = tokenizer_json();
  file["added_tokens"][0]["id"] = "four";
  folder.write_json("tokenizer.json", file);
  EXPECT_ERROR(load_tokenizer(folder.path()), format, HasSubstr("added_tokens.id is \"four\"; an integer below 2^63 is needed"));
  file["added_tokens"][0]["id"] = 5;
  folder.write_json("tokenizer.json", file);
  EXPECT_ERROR(load_tokenizer(folder.path()), format, HasSubstr("has id 5"));
}

TEST(LoadTokenizer, RunningOutOfMemoryIsAnError) {
  ModelFolder folder;
  folder.write("vocab.txt", kVocabulary);
  json file = tokenizer_json();
  file["post_processor"] = bert_template("[SEP]");
  folder.write_json("tokenizer.json", file);
  EXPECT_GT(io::run_out_of_memory([&] { load_tokenizer(folder.path()); }, [] {}), 50);
  folder.write_json("config.json", config_json(small_bert()));
  EXPECT_GT(io::run_out_of_memory([&] { read_bert_config(folder.path() / "config.json"); }, [] {}), 10);
}

}  // namespace
}  // namespace polyhead::models
