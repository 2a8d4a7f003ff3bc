#include "polyhead/head_measures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "polyhead/error.h"
#include "polyhead/tensor.h"
#include "polyhead/viewer.h"
#include "viewer/assets.h"

namespace polyhead::viewer {
namespace {

using ::testing::HasSubstr;

std::size_t place(std::string_view name) {
  return static_cast<std::size_t>(std::ranges::find(head_measures(), name, &HeadMeasure::name) - head_measures().begin());
}

double measured(const Tensor& map, const std::vector<std::string>& pieces, const std::vector<bool>& special, std::string_view name) {
  return measure_head(map, {.pieces = pieces, .special = special}).at(place(name));
}

const std::vector<std::string> kPieces{"[CLS]", "a", "b", "a", "[SEP]"};
const std::vector<bool> kSpecial{true, false, false, false, true};
// The rows of the words "a", "b", "a" have simple weights, so that the expected measures can be computed by hand. Rows of special tokens must not count.
const Tensor kMap = Tensor::of<float>({5, 5}, {1, 0, 0, 0, 0,  //
                                               0.25F, 0.25F, 0.5F, 0, 0,  //
                                               0.5F, 0.125F, 0, 0.125F, 0.25F,  //
                                               0.125F, 0.5F, 0.25F, 0.0625F, 0.0625F,  //
                                               0, 0, 0, 0, 1});

TEST(HeadMeasures, AreThoseOfTheirFormulas) {
  const auto value = [](std::string_view name) { return measured(kMap, kPieces, kSpecial, name); };
  EXPECT_DOUBLE_EQ(value("previous"), (0.25 + 0.125 + 0.25) / 3);
  EXPECT_DOUBLE_EQ(value("next"), (0.5 + 0.125 + 0.0625) / 3);
  EXPECT_DOUBLE_EQ(value("same"), (0.25 + 0 + 0.0625) / 3);
  EXPECT_DOUBLE_EQ(value("first"), (0.25 + 0.5 + 0.125) / 3);
  EXPECT_DOUBLE_EQ(value("sink"), (0.5 + 0.125) / 2);  // the measure "sink" does not count the neighbour of the first token, so only two rows count
  EXPECT_DOUBLE_EQ(value("separators"), (0 + 0.25 + 0.0625) / 3);
  EXPECT_DOUBLE_EQ(value("duplicate"), 0.5);   // only the second "a" has an earlier occurrence, which is token 1
  EXPECT_DOUBLE_EQ(value("induction"), 0.25);  // the token after this occurrence is "b", token 2
  EXPECT_DOUBLE_EQ(value("entropy"), (1.5 + (0.5 + 2 * 0.125 * 3 + 0.25 * 2) + (0.125 * 3 + 0.5 + 0.25 * 2 + 2 * 0.0625 * 4)) / 3);
  EXPECT_DOUBLE_EQ(value("distance"), (0.25 + 0.5 + (0.5 * 2 + 0.125 + 0.125 + 0.25 * 2) + (0.125 * 3 + 1 + 0.25 + 0.0625)) / 3);
}

TEST(HeadMeasures, MeasuresThatATextDoesNotHaveAreNaN) {
  const std::vector<std::string> different{"a", "b", "c", "d", "e"};
  for (const char* name : {"induction", "duplicate", "separators"}) EXPECT_TRUE(std::isnan(measured(kMap, different, {}, name))) << name;
  EXPECT_FALSE(std::isnan(measured(kMap, different, {}, "previous")));
  const Tensor one = Tensor::of<float>({1, 1}, {1});
  for (const char* name : {"previous", "next", "sink", "positional"}) EXPECT_TRUE(std::isnan(measured(one, {"a"}, {}, name))) << name;
}

// The expected value is computed by hand. Key 0 is identified by its position, the others by their distance; each row is predicted from the two others:
//   row 0: (3/8, 0, 0), overlap 1; row 1: (5/8, 1/4, 0) / (7/8), overlap 1/2 + 2/7; row 2: (3/4, 0, 1/2) / (5/4), overlap 1/4 + 1/4.
TEST(HeadMeasures, PositionalShareIsTheOverlapWithTheOtherRows) {
  const Tensor map = Tensor::of<float>({3, 3}, {1, 0, 0, 0.5F, 0.5F, 0, 0.25F, 0.5F, 0.25F});
  EXPECT_NEAR(measured(map, {"x", "y", "z"}, {}, "positional"), 16.0 / 21, 1e-15);
}

// Positions must explain a head that looks at the previous token, and a head that looks at all tokens alike. They must not explain a head that looks at one key
// in each row, each time at another distance.
TEST(HeadMeasures, PositionalShareTellsPositionsFromContent) {
  constexpr std::int64_t kTokens = 12;
  std::vector<std::string> pieces;
  for (std::int64_t i = 0; i < kTokens; ++i) pieces.push_back(std::to_string(i));
  Tensor previous(DType::f32, {kTokens, kTokens}), even(DType::f32, {kTokens, kTokens}), content(DType::f32, {kTokens, kTokens});
  for (Tensor* map : {&previous, &even, &content}) fill(*map, 0);
  constexpr std::array<std::int64_t, kTokens> kLooksAt{6, 3, 11, 1, 9, 10, 2, 5, 4, 7, 3, 8};
  for (std::int64_t t = 0; t < kTokens; ++t) {
    previous.data<float>()[t * kTokens + std::max<std::int64_t>(0, t - 1)] = 1;
    content.data<float>()[t * kTokens + kLooksAt[static_cast<std::size_t>(t)]] = 1;
    for (std::int64_t s = 0; s < kTokens; ++s) even.data<float>()[t * kTokens + s] = 1.0F / kTokens;
  }
  EXPECT_GT(measured(previous, pieces, {}, "positional"), 0.85);
  // The pairs in two corners of the map are the only ones of their distance, so no other row predicts them.
  EXPECT_GT(measured(even, pieces, {}, "positional"), 0.99 - 2.0 / kTokens);
  EXPECT_LT(measured(content, pieces, {}, "positional"), 0.15);
}

TEST(HeadMeasures, AnyStridesAndDtypesGiveTheSame) {
  Tensor transposed(DType::f32, {5, 5});
  copy(kMap.view().transpose(0, 1), transposed);
  const Tensor wide = Tensor::copy_of(kMap, DType::f64);
  const auto want = measure_head(kMap, {.pieces = kPieces, .special = kSpecial});
  EXPECT_EQ(measure_head(transposed.view().transpose(0, 1), {.pieces = kPieces, .special = kSpecial}), want);
  EXPECT_EQ(measure_head(wide, {.pieces = kPieces, .special = kSpecial}), want);
}

TEST(HeadMeasures, MeanAndSpreadAreThoseOfTheTexts) {
  const Tensor other = Tensor::of<float>({1, 1, 2, 2}, {1, 0, 0.75F, 0.25F});
  const std::vector<std::string> pieces{"x", "y"};
  MeasuredTexts texts;
  texts.add(kMap.view().reshape({1, 1, 5, 5}), {.pieces = kPieces, .special = kSpecial});
  texts.add(other, {.pieces = pieces, .special = {}});
  const MeasuredTexts::Value& previous = texts.value(0, 0, place("previous"));
  const double a = 0.625 / 3, b = 0.75;
  EXPECT_EQ(previous.count, 2);
  EXPECT_NEAR(previous.mean, (a + b) / 2, 1e-15);
  EXPECT_NEAR(previous.spread(), std::abs(a - b) / std::sqrt(2), 1e-15);
  EXPECT_EQ(texts.value(0, 0, place("duplicate")).count, 1);  // no word occurs twice in the second text, so only the first has this measure
  EXPECT_TRUE(std::isnan(texts.value(0, 0, place("duplicate")).spread()));
  EXPECT_EQ(texts.texts(), 2);
  EXPECT_EQ(texts.shortest(), 2);
  EXPECT_EQ(texts.longest(), 5);
}

TEST(HeadMeasures, ANameNeedsFiveTextsAndHoldsInNineOfTen) {
  const Tensor holds = Tensor::of<float>({1, 1, 2, 2}, {1, 0, 0.5F, 0.5F}), breaks = Tensor::of<float>({1, 1, 2, 2}, {1, 0, 0.49F, 0.51F});
  const std::vector<std::string> pieces{"x", "y"};
  MeasuredTexts texts;
  const auto named = [&] { return texts.names(0, 0, place("previous")); };
  for (int i = 0; i < 4; ++i) texts.add(holds, {.pieces = pieces, .special = {}});
  EXPECT_FALSE(named());
  texts.add(holds, {.pieces = pieces, .special = {}});
  EXPECT_TRUE(named());
  texts.add(breaks, {.pieces = pieces, .special = {}});  // now the name holds in 5 of 6 texts, less than 9 of 10
  EXPECT_FALSE(named());
  for (int i = 0; i < 4; ++i) texts.add(holds, {.pieces = pieces, .special = {}});  // now the name holds in 9 of 10 texts
  EXPECT_TRUE(named());
  EXPECT_FALSE(texts.names(0, 0, place("entropy")));
}

TEST(HeadMeasures, WrongSizesAreRefusedByName) {
  const auto message = [](auto call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  MeasuredTexts texts;
  EXPECT_THAT(message([&] { texts.add(kMap, {.pieces = kPieces, .special = {}}); }), HasSubstr("they must be [layers,heads,T,T]"));
  EXPECT_THAT(message([&] { measure_head(kMap.view().slice(0, 0, 4), {.pieces = kPieces, .special = {}}); }), HasSubstr("float32 [4,5]; they must be floating and [T,T]"));
  const std::vector<std::string> few{"a"};
  EXPECT_THAT(message([&] { measure_head(kMap, {.pieces = few, .special = {}}); }), HasSubstr("1 tokens for attention weights [5,5]"));
  EXPECT_THAT(message([&] { measure_head(kMap, {.pieces = kPieces, .special = {true}}); }), HasSubstr("1 special flags for 5 tokens"));
  texts.add(kMap.view().reshape({1, 1, 5, 5}), {.pieces = kPieces, .special = kSpecial});
  EXPECT_THAT(message([&] { texts.add(kMap.view().reshape({1, 1, 5, 5}).expand({1, 2, 5, 5}), {.pieces = kPieces, .special = kSpecial}); }), HasSubstr("after those of a text with 1 layers of 1 heads"));
  EXPECT_THAT(message([&] { render({.title = "", .texts = {{.text = "", .queries = {.pieces = kPieces}, .attentions = kMap.view().reshape({1, 1, 5, 5}).expand({2, 1, 5, 5})}}, .measured = texts}); }), HasSubstr("measures of 1 layers of 1 heads"));
  EXPECT_THAT(message([&] { render({.title = "", .measured = MeasuredTexts()}); }), HasSubstr("Page::measured has no text"));
}

// The page itself measures the texts that it shows, so its script has the same list of measures, with the same limits from which a measure names a head.
TEST(HeadMeasures, ThePageHasTheSameMeasuresAndLimits) {
  // The expected text has no blanks around the arrow and after the brace, because embed.cmake removes them.
  for (const HeadMeasure& measure : head_measures()) {
    std::string number = std::to_string(measure.named_from);
    number.erase(number.find_last_not_of('0') + 1);
    EXPECT_THAT(std::string(kScript), HasSubstr("\n" + std::string(measure.name) + ": {" + (measure.named_from > 0 ? "named: " + number + ", " : "") + "name: ()=>say(\"" + std::string(measure.title) + "\")"));
  }
}

TEST(HeadMeasures, ThePageHoldsMeanSpreadAndCounts) {
  MeasuredTexts texts;
  texts.add(kMap.view().reshape({1, 1, 5, 5}), {.pieces = kPieces, .special = kSpecial});
  const std::string html = render({.title = "", .texts = {{.text = "", .queries = {.pieces = kPieces}, .attentions = kMap.view().reshape({1, 1, 5, 5})}}, .measured = texts});
  const std::string tag = R"(id="data">)";
  const std::size_t begin = html.find(tag) + tag.size();
  const auto measured = nlohmann::json::parse(html.substr(begin, html.find("</script", begin) - begin))["measured"];
  EXPECT_EQ(measured["texts"], 1);
  EXPECT_EQ(measured["tokens"], nlohmann::json({5, 5}));
  EXPECT_EQ(measured["values"]["previous"], nlohmann::json::parse("[[0.208333,null,1,0]]"));
  EXPECT_EQ(measured["values"].size(), head_measures().size());
}

}  // namespace
}  // namespace polyhead::viewer
