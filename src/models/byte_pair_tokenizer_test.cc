#include "polyhead/models/byte_pair_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <utf8proc.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "models/minilm_test_data.h"
#include "models/test_error_matcher.h"
#include "models/test_model_folder.h"

namespace polyhead::models {
namespace {

using testing::ElementsAreArray;
using testing::HasSubstr;

std::vector<std::string> lines(const std::string& name) {
  std::ifstream file(std::filesystem::path(POLYHEAD_SOURCE_DIR) / "tests/data/byte_pairs" / name);
  std::vector<std::string> result;
  for (std::string line; std::getline(file, line);) result.push_back(line);
  return result;
}

const std::vector<std::string>& corpus() {
  static const std::vector<std::string> kCorpus = lines("texts.txt");
  return kCorpus;
}

BytePairTokenizer whole_words(std::vector<std::string> texts, bool lowercase = false) {
  return BytePairTokenizer::train(texts, {.vocabulary = 100'000, .lowercase = lowercase, .special_tokens = {"<pad>", "<start>"}, .min_count = 1});
}

std::vector<std::string> words(const BytePairText& text, std::string_view source) {
  std::vector<std::string> result;
  for (const ByteSpan& span : text.word_spans) result.emplace_back(source.substr(span.first, span.last - span.first));
  return result;
}

// Replaces each byte that is not UTF-8 by U+FFFD, and returns the result in the normal form NFC as utf8proc computes it.
std::string nfc(const std::string& text) {
  std::string valid;
  for (std::size_t i = 0; i < text.size();) {
    utf8proc_int32_t code = 0;
    const auto length = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + i, static_cast<utf8proc_ssize_t>(text.size() - i), &code);
    valid += length > 0 ? text.substr(i, static_cast<std::size_t>(length)) : "\uFFFD";
    i += length > 0 ? static_cast<std::size_t>(length) : 1;
  }
  utf8proc_uint8_t* result = nullptr;
  const auto size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(valid.data()), static_cast<utf8proc_ssize_t>(valid.size()), &result,
                                 static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, &std::free);
  return {reinterpret_cast<const char*>(result), static_cast<std::size_t>(size)};
}

TEST(BytePairTokenizer, MergesAndIdsAreThoseOfTheTokenizersPackage) {
  const nlohmann::json expected = read_json(std::filesystem::path(POLYHEAD_SOURCE_DIR) / "tests/data/byte_pairs/expected.json");
  const auto tokenizer = BytePairTokenizer::train(corpus(), {.vocabulary = 420});
  EXPECT_EQ(tokenizer.vocabulary_size(), expected.at("vocabulary"));
  for (std::size_t i = 0; i < corpus().size(); ++i) EXPECT_EQ(tokenizer.encode(corpus()[i]).ids, expected.at("ids")[i].get<std::vector<std::int64_t>>()) << corpus()[i];
}

TEST(BytePairTokenizer, TextsAreDecodedToTheirNormalForm) {
  const auto tokenizer = BytePairTokenizer::train(corpus(), {.vocabulary = 400, .special_tokens = {"<pad>"}});
  for (const std::string text :
       {"", " ", "  a", "a ", "l'eau", "l' eau", "l 'eau", "d’où ?", "« Où\u00a0? »", "e\u0301te\u0301", "q\u0323\u0307", "\u0301 \u0301", "家に帰る", "the家 cat",
        "👩‍👩‍👧 🇫🇷!", "a\n\tb\r\n", "<pad>", "▁a ␣ \\x41", "각", "\u1100\u1161\u11a8", "'", "''", "a'", "'a", "a''b", "a-b", "a , b", "a,b", "Ａ", "\u0958"}) {
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text).ids), nfc(text)) << text;
  }
  const std::string zero("a\0b", 3);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(zero).ids), zero);
}

TEST(BytePairTokenizer, RandomTextsAreDecodedToTheirNormalForm) {
  const auto tokenizer = BytePairTokenizer::train(corpus(), {.vocabulary = 380});
  constexpr unsigned kSeed = 20;
  std::mt19937 random(kSeed);
  // The pieces of random texts: letters, marks, spaces, punctuation, Hangul, and any bytes at all.
  const std::vector<std::string> parts{"a", "E", "é", "e", "\u0301", "\u0305", "\u0323", "\u0327", " ", " ", "  ", "\n", "'", "’", ",", ".", "\"", "\u00a0", "\u1100", "\u1161", "\u11a8",
                                       "我", "👍", "\u200d", "_", "1", "the", "\uFFFD", "\u0000", "\u09c7", "\u09be", "\U000114B9", "\U000114BA"};
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (std::size_t length = random() % 20; length > 0; --length) {
      const auto choice = random();
      if (choice % 10 == 0) text += static_cast<char>(random());
      else if (choice % 10 == 1) {
        utf8proc_uint8_t bytes[4];
        utf8proc_int32_t code = 0;
        do code = static_cast<utf8proc_int32_t>(random() % 0x110000);
        while (!utf8proc_codepoint_valid(code));
        text.append(reinterpret_cast<char*>(bytes), static_cast<std::size_t>(utf8proc_encode_char(code, bytes)));
      } else text += parts[random() % parts.size()];
    }
    const BytePairText encoded = tokenizer.encode(text);
    ASSERT_EQ(tokenizer.decode(encoded.ids), nfc(text)) << "seed " << kSeed << ", round " << round;
    for (const ByteSpan& span : encoded.spans) ASSERT_TRUE(span.first <= span.last && span.last <= text.size()) << "round " << round;
  }
}

TEST(BytePairTokenizer, AWordIsTheSameTokenAfterASpaceAndAfterAnApostrophe) {
  const auto tokenizer = whole_words({"l'eau, une eau; The dog's tail isn't dry. Aujourd’hui"});
  EXPECT_THAT(tokenizer.encode("l'eau, une eau").pieces, ElementsAreArray({"▁l'", "▁eau", ",␣", "▁une", "▁eau"}));
  EXPECT_THAT(tokenizer.encode("The dog's tail isn't dry.").pieces, ElementsAreArray({"▁The", "▁dog'", "▁s", "▁tail", "▁isn'", "▁t", "▁dry", "."}));
  EXPECT_THAT(tokenizer.encode("Aujourd’hui").pieces, ElementsAreArray({"▁Aujourd’", "▁hui"}));
}

TEST(BytePairTokenizer, WithALargeVocabularyEachWordIsOneToken) {
  const auto tokenizer = whole_words(corpus());
  for (const std::string& text : corpus()) {
    const BytePairText encoded = tokenizer.encode(text);
    std::vector<std::int64_t> words;
    for (const std::int64_t word : encoded.words)
      if (word >= 0) words.push_back(word);
    std::vector<std::int64_t> all(encoded.word_spans.size());
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(words, all) << text;
  }
}

TEST(BytePairTokenizer, SpansAndWordsAreThoseOfTheText) {
  const auto tokenizer = BytePairTokenizer::train(std::vector<std::string>{"ab ab ab"}, {.vocabulary = 259});
  const std::string text = "  Ab e\u0301ab, ab";
  const BytePairText encoded = tokenizer.encode(text);
  EXPECT_THAT(encoded.pieces, ElementsAreArray({"␣", "␣", "▁", "A", "b", "▁", "\\xC3", "\\xA9", "ab", ",", "␣", "▁ab"}));
  EXPECT_THAT(encoded.words, ElementsAreArray({-1, -1, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3}));
  EXPECT_THAT(words(encoded, text), ElementsAreArray({"Ab", "e\u0301ab", ",", "ab"}));
  EXPECT_EQ(encoded.spans[6], (ByteSpan{5, 8}));
  EXPECT_EQ(encoded.spans[7], (ByteSpan{5, 8}));
  EXPECT_EQ(encoded.spans[8], (ByteSpan{8, 10}));
  EXPECT_EQ(encoded.spans[10], (ByteSpan{11, 12}));
}

TEST(BytePairTokenizer, LowercasingIsOptionalAndUsesTheFullMapping) {
  const auto tokenizer = whole_words({"été"}, true);
  EXPECT_TRUE(tokenizer.lowercase());
  EXPECT_THAT(tokenizer.encode("ÉTÉ E\u0301TE\u0301").pieces, ElementsAreArray({"▁été", "▁été"}));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("ÀÇ İ").ids), "àç i\u0307");
}

TEST(BytePairTokenizer, BytesThatAreNotUtf8AreCountedAndReadAsU_FFFD) {
  const auto tokenizer = whole_words({"cat"});
  const BytePairText encoded = tokenizer.encode("cat\x80 \xe2\x82 \xff");
  EXPECT_EQ(encoded.replaced_bytes, 4);
  EXPECT_EQ(tokenizer.decode(encoded.ids), "cat\uFFFD \uFFFD\uFFFD \uFFFD");
}

TEST(BytePairTokenizer, BytesThatAreNotUtf8AreDecodedToU_FFFD) {
  const auto tokenizer = whole_words({"cat"});
  const std::int64_t half = tokenizer.encode("é").ids[1];
  EXPECT_EQ(tokenizer.decode(std::vector<std::int64_t>{half}), "\uFFFD");
  EXPECT_ERROR(tokenizer.decode(std::vector<std::int64_t>{tokenizer.vocabulary_size()}), invalid_argument, HasSubstr("is not in 0 .."));
  EXPECT_ERROR(tokenizer.piece(-1), invalid_argument, HasSubstr("id -1"));
}

TEST(BytePairTokenizer, TextNeverBecomesASpecialToken) {
  const auto tokenizer = whole_words({"<pad> cat"});
  EXPECT_EQ(tokenizer.special_token("<start>"), 1);
  EXPECT_THAT(tokenizer.encode("<pad> cat").ids, testing::Each(testing::Ge(2)));
  EXPECT_EQ(tokenizer.piece(0), "<pad>");
  std::vector<std::int64_t> ids = tokenizer.encode("cat cat").ids;
  ids.insert(ids.begin() + 1, 0);
  EXPECT_EQ(tokenizer.decode(ids), "cat cat");
  EXPECT_ERROR(tokenizer.special_token("<end>"), invalid_argument, HasSubstr("'<end>'"));
}

TEST(BytePairTokenizer, GivenWordsAreEncodedAsTheTextThatTheyAreWrittenAs) {
  const auto tokenizer = whole_words({"C'est l'eau (froide), dit-il: \"Oui, Anna's!\" Non."});
  const std::string text = "C' est l' eau ( froide ) , dit-il : \" Oui , Anna 's ! \" Non .";
  const BytePairText encoded = tokenizer.encode_words(text);
  EXPECT_EQ(tokenizer.decode(encoded.ids), "C'est l'eau (froide), dit-il: \"Oui, Anna's!\" Non.");
  EXPECT_THAT(words(encoded, text), ElementsAreArray({"C'", "est", "l'", "eau", "(", "froide", ")", ",", "dit-il", ":", "\"", "Oui", ",", "Anna", "'s", "!", "\"", "Non", "."}));
  EXPECT_THAT(std::vector(encoded.pieces.begin(), encoded.pieces.begin() + 4), ElementsAreArray({"▁C'", "▁est", "▁l'", "▁eau"}));
  for (std::int64_t word = 0; word < std::ssize(encoded.word_spans); ++word) EXPECT_THAT(encoded.words, testing::Contains(word));
  for (std::size_t i = 0; i < encoded.words.size(); ++i) {
    const ByteSpan& word = encoded.word_spans[static_cast<std::size_t>(encoded.words[i])];
    EXPECT_LE(encoded.spans[i].first, word.last) << encoded.pieces[i];
    EXPECT_GE(encoded.spans[i].last, word.first) << encoded.pieces[i];
  }
  EXPECT_TRUE(tokenizer.encode_words(" \n").ids.empty());
}

TEST(BytePairTokenizer, ALongWordTakesNoMoreThanItsLengthTimesALogarithm) {
  const auto tokenizer = BytePairTokenizer::train(std::vector<std::string>{std::string(64, 'a')}, {.min_count = 1});
  EXPECT_EQ(tokenizer.encode(std::string(200'000, 'a')).replaced_bytes, 0);  // takes minutes if each merge scans the whole word again
}

TEST(BytePairTokenizer, ASavedTokenizerIsLoadedUnchanged) {
  const ModelFolder folder;
  for (const bool lowercase : {false, true}) {
    const auto tokenizer = BytePairTokenizer::train(corpus(), {.vocabulary = 2000, .lowercase = lowercase, .special_tokens = {"<pad>", "à la fin", "\\"}, .min_count = 1});
    tokenizer.save(folder.path());
    const auto loaded = load_byte_pair_tokenizer(folder.path());
    EXPECT_EQ(loaded.special_tokens(), tokenizer.special_tokens());
    EXPECT_EQ(loaded.lowercase(), lowercase);
    ASSERT_EQ(loaded.vocabulary_size(), tokenizer.vocabulary_size());
    for (std::int64_t id = 0; id < loaded.vocabulary_size(); ++id) ASSERT_EQ(loaded.piece(id), tokenizer.piece(id));
    for (const std::string& text : corpus()) EXPECT_EQ(loaded.encode(text).ids, tokenizer.encode(text).ids);
  }
}

TEST(BytePairTokenizer, HostileFilesAreRefusedWithTheirLine) {
  const ModelFolder folder;
  const auto refuses = [&](std::string_view content, const std::string& message) {
    folder.write("merges.txt", content);
    EXPECT_ERROR(load_byte_pair_tokenizer(folder.path()), format, AllOf(HasSubstr("merges.txt: line"), HasSubstr(message))) << content;
  };
  const std::string start = "polyhead byte-pair tokenizer 1\nlowercase no\nspecial <pad>\nmerges\n";
  refuses("", "line 1 is not");
  refuses("polyhead byte-pair tokenizer 2\n", "line 1 is not");
  refuses("polyhead byte-pair tokenizer 1\n", "line 1 is neither 'lowercase");
  refuses("polyhead byte-pair tokenizer 1\nlowercase maybe\n", "line 2 is neither");
  refuses("polyhead byte-pair tokenizer 1\nlowercase no\n", "line 2 is neither a special token nor 'merges'");
  refuses("polyhead byte-pair tokenizer 1\nlowercase no\nspecial a\nspecial a\nmerges\n", "line 4 has a special token that is empty");
  refuses("polyhead byte-pair tokenizer 1\nlowercase no\nspecial \\xC3\nmerges\n", "line 3 has a special token that is empty, not UTF-8");
  refuses(start + "a\n", "line 5 is not two pieces");
  refuses(start + "a b c\n", "line 5 is not two pieces");
  refuses(start + "a  b\n", "line 5 is not two pieces");
  refuses(start + "a b\nab cd\n", "line 6 merges 'cd', which no line before it makes");
  refuses(start + "a \n", "line 5 merges '', which");
  refuses(start + "a b\na b\n", "line 6 repeats a merge");
  refuses(start + "a ▁\n", "line 5 has the start of a word inside a piece");
  refuses(start + "▁ a\na ▁a\n", "line 6 has the start of a word inside a piece");
  refuses(start + "\\x4 a\n", "line 5 has a \\ that is not");
  refuses(start + "\\xFF a\n", "line 5 has a \\ that is not");
  refuses(start + "\\x-1 a\n", "line 5 has a \\ that is not");
  refuses(start + std::string("a \0\n", 4) + "b", "line 6 is not two pieces");
  EXPECT_ERROR(load_byte_pair_tokenizer(folder.path() / "nowhere"), io, HasSubstr("merges.txt"));
  folder.write("merges.txt", "polyhead byte-pair tokenizer 1\r\nlowercase no\r\nmerges\r\n\\x41 b\r\n");
  EXPECT_THAT(load_byte_pair_tokenizer(folder.path()).encode("-Ab").pieces, ElementsAreArray({"-", "▁", "Ab"}));
}

TEST(BytePairTokenizer, OptionsAreChecked) {
  const auto train = [](BytePairOptions options) { BytePairTokenizer::train(corpus(), options); };
  EXPECT_ERROR(train({.vocabulary = 256, .special_tokens = {"<pad>"}}), invalid_argument, HasSubstr("1 special tokens and 256 bytes are 257"));
  EXPECT_ERROR(train({.min_count = 0}), invalid_argument, HasSubstr("min_count is 0"));
  EXPECT_ERROR(train({.special_tokens = {"a", "a"}}), invalid_argument, HasSubstr("given twice"));
  EXPECT_ERROR(train({.special_tokens = {""}}), invalid_argument, HasSubstr("empty"));
  EXPECT_EQ(BytePairTokenizer::train({}, {}).vocabulary_size(), 256);
}

}  // namespace
}  // namespace polyhead::models
