#include <chrono>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/failing_new.h"
#include "models/test_error_matcher.h"
#include "models/test_model_folder.h"
#include "polyhead/models/tokenizer.h"

namespace polyhead::models {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAreArray;
using testing::HasSubstr;

constexpr std::string_view kVocabularyText = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nThe\ncat\n##s\né\n";

json vocabulary_of(std::string_view lines) {
  json vocabulary = json::object();
  for (std::size_t first = 0; first < lines.size();) {
    const std::size_t last = lines.find('\n', first);
    vocabulary[std::string(lines.substr(first, last - first))] = vocabulary.size();
    first = last + 1;
  }
  return vocabulary;
}

json tokenizer_json(std::string_view vocabulary = kVocabularyText) {
  json file = json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [{"id": 4, "content": "[MASK]", "special": true, "single_word": false, "lstrip": true, "rstrip": false, "normalized": false}],
    "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": false, "lowercase": false},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
    "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
    "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 4}
  })");
  file["model"]["vocab"] = vocabulary_of(vocabulary);
  return file;
}

TEST(LoadTokenizer, TheVocabularyAloneGivesBertsDefaults) {
  ModelFolder folder;
  folder.write("vocab.txt", kVocabularyText);
  EXPECT_THAT(load_tokenizer(folder.path()).encode("The[MASK]Cats é").pieces,
              ElementsAreArray({"[CLS]", "the", "[MASK]", "cat", "##s", "[UNK]", "[SEP]"}));
}

TEST(LoadTokenizer, TokenizerConfigIsFollowed) {
  ModelFolder folder;
  folder.write("vocab.txt", kVocabularyText);
  folder.write_json("tokenizer_config.json",
                    R"({"do_lower_case": false, "strip_accents": null, "cls_token": {"content": "[PAD]"}})"_json);
  EXPECT_THAT(load_tokenizer(folder.path()).encode("The cats é").pieces, ElementsAreArray({"[PAD]", "The", "cat", "##s", "é", "[SEP]"}));
}

TEST(LoadTokenizer, TokenizerJsonIsFollowedBeforeVocabTxt) {
  ModelFolder folder;
  folder.write("vocab.txt", "[UNK]\n");
  folder.write_json("tokenizer_config.json", R"({"do_lower_case": true, "tokenizer_class": "PreTrainedTokenizerFast"})"_json);  // this class does not read do_lower_case
  folder.write_json("tokenizer.json", tokenizer_json());
  const Tokenizer tokenizer = load_tokenizer(folder.path());
  const TokenizedText tokens = tokenizer.encode("The  [MASK] é catss cats");
  EXPECT_THAT(tokens.pieces, ElementsAreArray({"[CLS]", "The", "[MASK]", "é", "[UNK]", "cat", "##s", "[SEP]"}));  // "catss" has more characters than the limit
  EXPECT_EQ(tokens.spans[2], (ByteSpan{3, 11}));
  EXPECT_EQ(tokenizer.decode(tokens.ids), "[CLS] The é [UNK] cats [SEP]");  // of the special tokens, only [MASK] is an added token, so the others stay
}

// tests/python/test_tokenizers.py compares with transformers.
TEST(LoadTokenizer, TokenizerConfigIsAppliedToTokenizerJson) {
  ModelFolder folder;
  folder.write_json("tokenizer.json", tokenizer_json());
  const auto pieces = [&](const json& config, const std::string& text) {
    folder.write_json("tokenizer_config.json", config);
    return load_tokenizer(folder.path()).encode(text).pieces;
  };
  EXPECT_THAT(pieces(R"({"do_lower_case": true})"_json, "The"), ElementsAreArray({"[CLS]", "The", "[SEP]"}));  // no file names the class
  EXPECT_THAT(pieces(R"({"tokenizer_class": "BertTokenizerFast"})"_json, "The é"), ElementsAreArray({"[CLS]", "the", "[UNK]", "[SEP]"}));
  EXPECT_THAT(pieces(R"({"tokenizer_class": "BertTokenizer", "do_lower_case": false})"_json, "The é"), ElementsAreArray({"[CLS]", "The", "é", "[SEP]"}));
  EXPECT_THAT(pieces(R"({"tokenizer_class": "BertTokenizer", "strip_accents": false})"_json, "É"), ElementsAreArray({"[CLS]", "é", "[SEP]"}));
  EXPECT_THAT(pieces(R"({"sep_token": "cat", "additional_special_tokens": [{"content": "the"}]})"_json, "thecat"), ElementsAreArray({"[CLS]", "the", "cat", "[SEP]"}));
  folder.write_json("config.json", R"({"model_type": "bert"})"_json);
  EXPECT_THAT(pieces(json::object(), "The"), ElementsAreArray({"[CLS]", "the", "[SEP]"}));
  EXPECT_ERROR(pieces(R"({"cls_token": "[SEP]"})"_json, ""), unsupported, HasSubstr("cls_token is \"[SEP]\", and tokenizer.json puts \"[CLS]\" there"));
  EXPECT_ERROR(pieces(R"({"split_special_tokens": true})"_json, ""), unsupported, HasSubstr("split_special_tokens is true"));
  EXPECT_ERROR(pieces(R"({"do_lower_case": "yes"})"_json, ""), format, HasSubstr("do_lower_case"));
}

TEST(LoadTokenizer, ManyNamesInTokenizerConfigTakeTimeInProportionToTheirNumber) {
  ModelFolder folder;
  folder.write_json("tokenizer.json", tokenizer_json());
  json config = R"({"tokenizer_class": "BertTokenizer"})"_json, names = json::array(), map;
  for (int i = 0; i < 200000; ++i) {
    names.push_back("<" + std::to_string(i) + ">");
    if (i < 20000) map["name" + std::to_string(i) + "_token"] = names.back();
  }
  config["additional_special_tokens"] = std::move(names);
  config.update(map);
  folder.write_json("tokenizer_config.json", config);
  folder.write_json("special_tokens_map.json", map);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_ERROR(load_tokenizer(folder.path()).encode("the <199999>"), unsupported, HasSubstr("the text has \"<199999>\""));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));  // a search of all names for each name would take many minutes
}

TEST(LoadTokenizer, EachSwitchOfTheNormalizerIsRead) {
  const auto pieces = [](json normalizer, const std::string& text) {
    ModelFolder folder;
    json file = tokenizer_json("[UNK]\n[SEP]\n[CLS]\né\ne\na我\na\n我\nA\n");
    if (normalizer.is_object()) normalizer["type"] = "BertNormalizer";
    file["normalizer"] = std::move(normalizer);
    file["added_tokens"] = json::array();
    folder.write_json("tokenizer.json", file);
    auto all = load_tokenizer(folder.path()).encode(text).pieces;
    return std::vector<std::string>(all.begin() + 1, all.end() - 1);
  };
  EXPECT_THAT(pieces(json::object(), "É A"), ElementsAreArray({"e", "a"}));
  EXPECT_THAT(pieces(R"({"strip_accents": false})"_json, "É"), ElementsAreArray({"é"}));
  EXPECT_THAT(pieces(R"({"strip_accents": true, "lowercase": false})"_json, "é A"), ElementsAreArray({"e", "A"}));
  EXPECT_THAT(pieces(R"({"handle_chinese_chars": false})"_json, "a我"), ElementsAreArray({"a我"}));
  EXPECT_THAT(pieces(R"({"clean_text": false})"_json, "a\u200b"), ElementsAreArray({"[UNK]"}));
  EXPECT_THAT(pieces(nullptr, "A a我"), ElementsAreArray({"A", "a我"}));
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

TEST(LoadTokenizer, VocabularyAndMergesAreGpt2s) {
  ModelFolder folder;
  folder.write_json("vocab.json", R"({"h": 0, "i": 1, "Ġ": 2, "hi": 3, "Ġhi": 4, "<|endoftext|>": 5, "Ã": 6, "©": 7})"_json);
  folder.write("merges.txt", "#version: 0.2\nh i\nĠ hi\n");
  const Tokenizer tokenizer = load_tokenizer(folder.path());
  const TokenizedText tokens = tokenizer.encode("hi hi<|endoftext|>ié");
  EXPECT_THAT(tokens.ids, ElementsAreArray({3, 4, 5, 1, 6, 7}));
  EXPECT_EQ(tokens.spans[5], (ByteSpan{19, 21}));
  EXPECT_EQ(tokenizer.decode(tokens.ids), "hi hiié");
  EXPECT_EQ(tokenizer.decode(tokens.ids, false), "hi hi<|endoftext|>ié");
  folder.write_json("tokenizer_config.json", R"({"tokenizer_class": "RobertaTokenizer"})"_json);
  EXPECT_ERROR(load_tokenizer(folder.path()), unsupported, AllOf(HasSubstr("tokenizer_class is 'RobertaTokenizer'"), HasSubstr("save_pretrained")));
  folder.write_json("tokenizer_config.json", R"({"tokenizer_class": "GPT2Tokenizer"})"_json);
  EXPECT_NO_THROW(load_tokenizer(folder.path()));
  folder.write("merges.txt", "#version: 0.2\nh i\nh o\n");
  EXPECT_ERROR(load_tokenizer(folder.path()), format, HasSubstr("merges.txt: line 3: \"o\" is not in the vocabulary"));
  folder.write("merges.txt", "h i j\n");
  EXPECT_ERROR(load_tokenizer(folder.path()), format, HasSubstr("merges.txt: line 1 is \"h i j\""));
}

TEST(LoadTokenizer, Gpt2sConfigIsFollowedOrRefusedByName) {
  ModelFolder folder;
  folder.write_json("vocab.json", R"({"h": 0, "i": 1, "Ġ": 2, "hi": 3, "Ġhi": 4, "<|endoftext|>": 5})"_json);
  folder.write("merges.txt", "h i\nĠ hi\n");
  folder.write_json("tokenizer_config.json", R"({"add_prefix_space": true, "added_tokens_decoder": {"6": {"content": "<x>", "lstrip": true}, "5": {"content": "<|endoftext|>", "special": true}}})"_json);
  EXPECT_THAT(load_tokenizer(folder.path()).encode("hi  <x><|endoftext|>").ids, ElementsAreArray({4, 6, 5}));
  folder.write_json("tokenizer_config.json", R"({"added_tokens_decoder": {"7": {"content": "<x>"}}})"_json);
  EXPECT_ERROR(load_tokenizer(folder.path()), unsupported, AllOf(HasSubstr("\"<x>\" has id 7"), HasSubstr("save as tokenizer.json")));
  folder.write_json("tokenizer_config.json", R"({"add_bos_token": true})"_json);
  EXPECT_ERROR(load_tokenizer(folder.path()), unsupported, AllOf(HasSubstr("add_bos_token is true"), HasSubstr("save as tokenizer.json")));
  folder.write_json("tokenizer_config.json", json::object());
  folder.write_json("added_tokens.json", R"({"<y>": 6})"_json);
  EXPECT_THAT(load_tokenizer(folder.path()).encode("hi<y>").ids, ElementsAreArray({3, 6}));
  folder.write_json("special_tokens_map.json", R"({"eos_token": "<|endoftext|>"})"_json);
  EXPECT_NO_THROW(load_tokenizer(folder.path()));
  folder.write_json("special_tokens_map.json", R"({"pad_token": "<pad>"})"_json);
  EXPECT_ERROR(load_tokenizer(folder.path()), unsupported, AllOf(HasSubstr("special_tokens_map.json: pad_token"), HasSubstr("save as tokenizer.json")));
}

TEST(LoadTokenizer, AddedTokensAndTheClassOfTokenizerConfigAreFollowed) {
  ModelFolder folder;
  folder.write("vocab.txt", kVocabularyText);
  folder.write_json("tokenizer_config.json", R"({"tokenizer_class": "BertTokenizerFast", "added_tokens_decoder": {"4": {"content": "[MASK]", "lstrip": true, "special": true}, "10": {"content": "the cat", "single_word": true}}})"_json);
  const TokenizedText tokens = load_tokenizer(folder.path()).encode("The cat the cats  [MASK]");
  EXPECT_THAT(tokens.ids, ElementsAreArray({2, 10, 5, 7, 8, 4, 3}));
  EXPECT_EQ(tokens.spans[5], (ByteSpan{16, 24}));
  folder.write_json("tokenizer_config.json", R"({"tokenizer_class": "BertJapaneseTokenizer"})"_json);
  EXPECT_ERROR(load_tokenizer(folder.path()), unsupported, AllOf(HasSubstr("tokenizer_class is 'BertJapaneseTokenizer'"), HasSubstr("tokenizer.json")));
}

TEST(LoadTokenizer, AFolderWithoutATokenizerSaysWhatIsLookedFor) {
  ModelFolder folder;
  EXPECT_ERROR(load_tokenizer(folder.path()), io, AllOf(HasSubstr("tokenizer.json"), HasSubstr("vocab.txt"), HasSubstr("merges.txt")));
  folder.write("spiece.model", "\n\x0e");
  EXPECT_ERROR(load_tokenizer(folder.path()), unsupported, AllOf(HasSubstr("spiece.model"), HasSubstr("sentencepiece"), HasSubstr("save_pretrained")));
}

TEST(LoadTokenizer, MissingOrMalformedFilesAreErrorsThatNameThem) {
  ModelFolder folder;
  EXPECT_ERROR(load_tokenizer(folder.path() / "none"), io, HasSubstr("No such file"));
  std::filesystem::create_directory(folder.path() / "vocab.txt");
  EXPECT_ERROR(load_tokenizer(folder.path()), io, HasSubstr("is a directory"));
  std::filesystem::remove(folder.path() / "vocab.txt");
  folder.write("vocab.txt", "");
  EXPECT_ERROR(load_tokenizer(folder.path()), format, HasSubstr("vocab.txt is empty"));
  folder.write("vocab.txt", "[UNK]\n\n[CLS]\n[SEP]\n");
  EXPECT_ERROR(load_tokenizer(folder.path()), format, HasSubstr("line 2 is empty"));
  folder.write("vocab.txt", "[UNK]\n\xff\n[CLS]\n[SEP]\n");
  EXPECT_ERROR(load_tokenizer(folder.path()), format, HasSubstr("line 2 is not UTF-8"));
  folder.write("vocab.txt", "[UNK]\n[CLS]\n");
  EXPECT_ERROR(load_tokenizer(folder.path()), format, HasSubstr("'[SEP]'"));

  for (const std::string_view broken : {std::string_view("{}\0", 3), std::string_view(""), std::string_view("{")}) {
    folder.write("tokenizer.json", broken);
    EXPECT_ERROR(load_tokenizer(folder.path()), format, HasSubstr("tokenizer.json is not JSON at its byte")) << broken;
  }
  for (const std::string_view broken : { "[1,2]", "{\"model\": 3}", "{\"model\": {\"type\": 7}}", "\xff\xfe"}) {
    folder.write("tokenizer.json", broken);
    EXPECT_ERROR(load_tokenizer(folder.path()), format, HasSubstr("tokenizer.json")) << broken;
  }
}

TEST(LoadTokenizer, RunningOutOfMemoryIsAnError) {
  ModelFolder folder;
  json file = tokenizer_json();
  folder.write_json("tokenizer.json", file);
  EXPECT_GT(io::run_out_of_memory([&] { load_tokenizer(folder.path()); }, [] {}), 50);
  folder.write_json("config.json", config_json(small_bert()));
  EXPECT_GT(io::run_out_of_memory([&] { read_bert_config(folder.path() / "config.json"); }, [] {}), 10);
}

}  // namespace
}  // namespace polyhead::models
