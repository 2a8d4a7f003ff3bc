#include "polyhead/models/translator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "models/test_error_matcher.h"
#include "polyhead/nn/sampling.h"
#include "support/compare.h"
#include "support/random.h"

namespace polyhead::models {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

BytePairTokenizer words() {
  return BytePairTokenizer::train(std::vector<std::string>{"one red hat, two red hats", "un chapeau rouge, deux chapeaux rouges"}, {.vocabulary = 300, .special_tokens = Translator::special_tokens()});
}

// Returns a translator with large random parameters: translations differ between texts, and beams have different lengths.
Translator drawn(DType dtype, std::uint64_t seed) {
  Translator model({.longest = 24, .model_width = 8, .hidden_width = 12, .layers = 2, .heads = 2, .guided_head = 1, .dtype = dtype, .seed = seed}, words());
  test::Random random(seed);
  model.network.visit([&](const std::string&, Tensor& tensor) { random.fill(tensor, -0.7, 0.9); });
  random.fill(model.network.source_embedding.weight.view().select(0, Translator::kEnd), -2, 2.5);  // a large embedding of the end token lets some translations end
  return model;
}

// Translates greedily: calls forward() on the whole text at each step, without a cache, a batch or padding.
std::vector<std::int64_t> slowly(const Translator& model, std::vector<std::int64_t> source) {
  source.push_back(Translator::kEnd);
  std::vector<std::int64_t> written{Translator::kStart};
  Tensor best(DType::i64, {1});
  while (std::ssize(written) <= model.config.longest) {
    Tensor logits(model.config.dtype, {1, std::ssize(written), model.config.vocabulary});
    model.network.forward(ConstTensorView(source.data(), {1, std::ssize(source)}), ConstTensorView(written.data(), {1, std::ssize(written)}), logits);
    nn::greedy_tokens(logits.view().select(1, std::ssize(written) - 1), best);
    if (*best.data<std::int64_t>() == Translator::kEnd) break;
    written.push_back(*best.data<std::int64_t>());
  }
  return {written.begin() + 1, written.end()};
}

TEST(Translator, BatchesWithACacheHaveTheResultsOfSingleTextsWithoutACache) {
  std::int64_t ended = 0;
  for (const std::uint64_t seed : {1U, 2U, 3U, 4U, 5U, 6U}) {
    const Translator model = drawn(DType::f64, seed);
    std::vector<std::vector<std::int64_t>> sources;
    for (const char* text : {"two red hats", "one", "hats, hats, red", "un chapeau"}) sources.push_back(model.tokenizer.encode(text).ids);
    const auto texts = translate_all(model, sources);
    for (std::size_t i = 0; i < sources.size(); ++i) EXPECT_EQ(texts[i], slowly(model, sources[i])) << "seed " << seed << ", text " << i;
    ended += std::ranges::count_if(texts, [](const auto& text) { return text.size() < 24; });
    const auto beams = translate_all(model, sources, {.beams = 3});
    for (std::size_t i = 0; i < sources.size(); ++i) EXPECT_EQ(translate_all(model, {sources[i]}, {.beams = 3})[0], beams[i]) << "seed " << seed << ", text " << i;
  }
  EXPECT_TRUE(ended >= 4 && ended <= 20) << ended;  // some of the 6 x 4 translations write the end token; the others are cut off at `longest` tokens
}

TEST(Translator, MapsHaveARowForEachTokenAndTheStart) {
  const Translator model = drawn(DType::f64, 4);
  const BytePairText source = model.tokenizer.encode("two red hats"), target = model.tokenizer.encode("deux chapeaux");
  const Translation read = read_translation(model, source, target);
  const std::int64_t s = std::ssize(source.ids) + 1, t = std::ssize(target.ids) + 1;
  EXPECT_EQ(read.attentions.shape(), (Shape{2, 2, t, s}));
  EXPECT_EQ(read.source_attentions.shape(), (Shape{2, 2, s, s}));
  EXPECT_EQ(read.target_attentions.shape(), (Shape{2, 2, t, t}));
  EXPECT_EQ(test::to_doubles(read.target_attentions)[1], 0) << "the start token attends only to itself";
  EXPECT_EQ(read.text, "deux chapeaux");
  EXPECT_EQ(read.alignment.size(), 2U);
  // A later token does not change the rows of earlier tokens.
  const Translation longer = read_translation(model, source, model.tokenizer.encode("deux chapeaux rouges"));
  EXPECT_TRUE(test::near(longer.attentions.view().slice(2, 0, t), read.attentions, 1e-12));
}

TEST(Translator, WordsAreAlignedByTheSumOfTheirTokens) {
  // Target tokens: start, word 0, word 0, none, word 1, word 2. Source tokens: word 0, word 1, word 1, end.
  const Tensor map = Tensor::of<double>({6, 4}, {0, 0, 0, 1, .4, .1, .1, .4, .1, .4, .4, .1, 1, 0, 0, 0, 1, 0, 0, 0, .1, .1, .1, .7});
  const std::vector<std::int64_t> source{0, 1, 1}, target{0, 0, -1, 1, 2};
  EXPECT_THAT(align_words(map, source, target, 3), ElementsAre(1, 0, -1));
  EXPECT_ERROR(align_words(map, target, source, 3), invalid_argument, HasSubstr("map is [6,4]"));
}

TEST(Translator, AFolderGivesTheSameTranslations) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "translator";
  const Translator model = drawn(DType::f32, 5);
  save_translator(model, folder);
  const Translator loaded = load_translator(folder);
  const Translation a = translate(model, "one red hat"), b = translate(loaded, "one red hat");
  EXPECT_EQ(a.text, b.text);
  EXPECT_TRUE(test::same_bits(a.attentions, b.attentions));
  EXPECT_EQ(a.alignment, b.alignment);
  EXPECT_EQ(loaded.config.guided_head, 1);
  EXPECT_ERROR(translate(model, "one red hat", {.length_penalty = 2}), invalid_argument, HasSubstr("length_penalty is 2 with 1 beam, which compares no translations; give more beams, or a length_penalty of 1"));
  EXPECT_ERROR(translate(model, ""), invalid_argument, HasSubstr("the text is empty"));
  EXPECT_ERROR(translate(model, "a text of letters that have a token each"), invalid_argument, HasSubstr("the model takes at most 24"));
  words().save(folder);
  EXPECT_ERROR(Translator({.guided_head = 4, .seed = 1}, words()), invalid_argument, HasSubstr("guided_head is 4; there are 4 heads"));
  EXPECT_ERROR(Translator({.seed = 1}, BytePairTokenizer::train({})), invalid_argument, HasSubstr("special tokens must be <start> and <end>"));
  BytePairTokenizer::train({}, {.special_tokens = Translator::special_tokens()}).save(folder);
  EXPECT_ERROR(load_translator(folder), invalid_argument, HasSubstr("the tokenizer has 258 tokens; config.json says 275"));
}

}  // namespace
}  // namespace polyhead::models
