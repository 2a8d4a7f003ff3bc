#include "polyhead/models/sentence_chooser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <numeric>

#include "models/test_error_matcher.h"
#include "polyhead/maps.h"
#include "support/gradients.h"
#include "support/random.h"

namespace polyhead::models {
namespace {

using test::Random;
using testing::ElementsAre;
using testing::HasSubstr;

SentenceChooserConfig tiny_chooser(DType dtype) { return {.slots = 16, .model_width = 4, .hidden_width = 6, .layers = 2, .heads = 2, .dtype = dtype, .seed = 3}; }

const std::vector<std::string> kText{"Rain is common here.", "We measure rain.", "It rains!"};

TEST(SentenceChooser, GradientsAgreeWithCentralDifferences) {
  Random random(5);
  SentenceChooserConfig config = tiny_chooser(DType::f64);
  config.dropout = 0.3;
  SentenceChooser model(config), gradients = nn::zeros_like(model);
  const std::vector<SentenceChooser::Text> texts{model.read(kText), model.read(std::span(kText).first(2))};
  Tensor weights = random.tensor(DType::f64, {2, 3}), scores(DType::f64, {2, 3});
  weights.data<double>()[5] = 0;  // the second text has only two sentences
  for (const nn::Mode mode : {nn::Mode::evaluation, nn::Mode::training}) {
    SentenceChooser::Saved saved;
    const auto forward = [&] { model.forward(texts, scores, saved, {.mode = mode, .dropout_seed = 9}); };
    forward();
    model.backward(saved, weights, gradients);
    test::expect_gradients(
        [&] {
          forward();
          return test::weighted_sum(scores, weights);
        },
        test::parameter_leaves(model, gradients));
  }
}

TEST(SentenceChooser, GradientsOfALossOnAttentionWeightsAreAdded) {
  Random random(6);
  SentenceChooser model(tiny_chooser(DType::f64)), gradients = nn::zeros_like(model);
  const std::vector<SentenceChooser::Text> texts{model.read(kText)};
  const Tensor weights = random.tensor(DType::f64, {1, 3}), d_p = random.tensor(DType::f64, {1, 3, 3});
  Tensor scores(DType::f64, {1, 3}), p(DType::f64, {1, 2, 3, 3});
  SentenceChooser::Saved saved;
  const auto loss = [&] {
    model.forward(texts, scores, saved);
    attention_map(saved.encoder.layers[0].attention.maps(), p, saved.encoder.layers[0].attention.sdpa);
    return test::weighted_sum(scores, weights) + test::weighted_sum(p.view().select(1, 1), d_p);
  };
  loss();
  const nn::AttentionWeightsGradient of_head{.head = 1, .d_p = d_p};
  model.backward(saved, weights, gradients, {}, {&of_head, 1});
  test::expect_gradients(loss, test::parameter_leaves(model, gradients));
}

// A text has the same scores alone and in a batch in which it is padded.
TEST(SentenceChooser, TextsOfABatchDoNotAffectEachOther) {
  const SentenceChooser model(tiny_chooser(DType::f64));
  const std::vector<SentenceChooser::Text> texts{model.read(std::span(kText).first(2)), model.read(kText)};
  Tensor both(DType::f64, {2, 3}), alone(DType::f64, {1, 2});
  SentenceChooser::Saved saved;
  model.forward(texts, both, saved);
  model.forward(std::span(texts).first(1), alone, saved);
  for (std::int64_t s = 0; s < 2; ++s) EXPECT_EQ(both.data<double>()[s], alone.data<double>()[s]);
}

TEST(SentenceChooser, ReadsWordsPairsPrefixesAndPlaces) {
  SentenceChooser model(tiny_chooser(DType::f32));
  model.config.slots = 1 << 30;  // with so many slots no two terms share one; the table of scores is not read
  const auto terms = [&](const std::string& sentence) { return model.read({&sentence, 1})[0].slots; };
  EXPECT_EQ(terms("a b a b").size(), 2U + 3U + 3U);  // 2 words a, b; 3 pairs (start, a), (a, b), (b, a); 3 prefixes "a", "a b", "a b a"
  EXPECT_EQ(terms("We SEE Caf\u00e9s."), terms("we see cafes ."));
  EXPECT_NE(terms("dog bites man"), terms("man bites dog"));
  EXPECT_EQ(terms("\u200b").size(), 1U);
  std::vector<std::string> sentences(14, "one two three");
  sentences[1] = "one two";
  const SentenceChooser::Text text = model.read(sentences);
  EXPECT_THAT(text[0].places, ElementsAre(0, 23, 25, 48 + 1, 64 + 6, 91, 92, 98));  // "three" is in 12 other sentences
  EXPECT_THAT(text[1].places, ElementsAre(1, 23, 24, 48, 64, 91, 92, 98));
  EXPECT_THAT(text[13].places, ElementsAre(11, 12, 25, 49, 70, 91, 92, 98));
  const std::vector<std::string> shared{"measures of rainfall", "Measured with the rainy", "rainfall measure"};
  EXPECT_THAT(model.read(shared)[0].places, ElementsAre(0, 14, 25, 48 + 2, 64 + 1, 80 + 3, 92, 98));  // "measur" is in 2 other sentences, "rainfa" in 1
}

TEST(SentenceChooser, ReadsTheStartsOfNeighboursAndCountsTheWordWe) {
  SentenceChooser model(tiny_chooser(DType::f32));
  model.config.slots = 1 << 30;  // with so many slots no two terms share one; the table of scores is not read
  const auto slots = [&](std::initializer_list<std::string> sentences, std::size_t of) { return model.read(std::vector(sentences))[of].slots; };
  const auto alone = slots({"x"}, 0), first = slots({"x", "a b c d"}, 0), last = slots({"a b c d", "x"}, 1);
  EXPECT_EQ(first.size(), alone.size() + 2);  // and the terms "a" and "a b" for the start of the next sentence
  EXPECT_TRUE(std::ranges::includes(first, alone));
  EXPECT_EQ(slots({"x", "a b z"}, 0), first);
  EXPECT_NE(slots({"x", "a z c d"}, 0), first);
  EXPECT_EQ(last.size(), alone.size() + 2);
  EXPECT_NE(last, first);

  const auto text = model.read(std::vector<std::string>{"Here we are", "Were it so", "We", "Owe we, we", "we", "we", "we", "we", "we", "we"});
  for (std::int64_t s = 0; s < 10; ++s) {
    EXPECT_EQ(text[static_cast<std::size_t>(s)].places[6], 92 + (s == 0 ? 1 : s == 1 ? 0 : std::min<std::int64_t>(s, 5))) << s;
    EXPECT_EQ(text[static_cast<std::size_t>(s)].places[7], 98 + 7);
  }
}

TEST(SentenceChooser, AFolderGivesTheSameAnswers) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "sentence_chooser";
  const SentenceChooser model(tiny_chooser(DType::f32));
  save_sentence_chooser(model, folder);
  const ChosenSentence a = choose(model, kText), b = choose(load_sentence_chooser(folder), kText);
  EXPECT_EQ(a.scores, b.scores);
  EXPECT_EQ(a.best, std::ranges::max_element(a.scores) - a.scores.begin());
  EXPECT_NEAR(std::accumulate(a.scores.begin(), a.scores.end(), 0.0), 1, 1e-12);
  EXPECT_EQ(a.attentions.shape(), (Shape{2, 2, 3, 3}));
  for (std::int64_t row = 0; row < 12; ++row) EXPECT_NEAR(std::accumulate(a.attentions.data<float>() + row * 3, a.attentions.data<float>() + row * 3 + 3, 0.0), 1, 1e-5);

  EXPECT_EQ(load_sentence_chooser(folder).config.taught_heads, 0);
  SentenceChooserConfig taught = tiny_chooser(DType::f32);
  taught.taught_heads = 2;
  save_sentence_chooser(SentenceChooser(taught), folder);
  EXPECT_EQ(load_sentence_chooser(folder).config.taught_heads, 2);
  const std::string sizes = R"({"model_type": "polyhead-sentence-chooser", "slots": 16, "model_width": 4, "hidden_width": 6, "layers": 2, "heads": 2, "dropout": 0)";
  std::ofstream(folder / "config.json") << sizes << "}";  // a config.json as version 0.2 wrote it
  EXPECT_EQ(load_sentence_chooser(folder).config.taught_heads, 0);
  EXPECT_EQ(choose(load_sentence_chooser(folder), kText).scores, a.scores);
  std::ofstream(folder / "config.json") << sizes << R"(, "taught_heads": -1})";
  EXPECT_ERROR(load_sentence_chooser(folder), format, HasSubstr("taught_heads"));
  std::ofstream(folder / "config.json") << R"({"model_type": "bert"})";
  EXPECT_ERROR(load_sentence_chooser(folder), unsupported, HasSubstr("model_type is 'bert'"));
}

TEST(SentenceChooser, WhatDoesNotFitIsRefused) {
  SentenceChooserConfig config = tiny_chooser(DType::f32);
  config.slots = 0;
  EXPECT_ERROR(SentenceChooser{config}, invalid_argument, HasSubstr("slots is 0"));
  config = tiny_chooser(DType::bf16);
  EXPECT_ERROR(SentenceChooser{config}, invalid_argument, HasSubstr("dtype is bfloat16"));

  const SentenceChooser model(tiny_chooser(DType::f32));
  EXPECT_ERROR(choose(model, {}), invalid_argument, HasSubstr("there is no sentence"));
  Tensor scores(DType::f32, {1, 1});
  SentenceChooser::Saved saved;
  const auto refused = [&](const SentenceChooser::Text& text, const char* message) { EXPECT_ERROR(model.forward({&text, 1}, scores, saved), invalid_argument, HasSubstr(message)); };
  refused({{.slots = {16}, .places = {0}}}, "a slot is 16; the model has 16");
  refused({{.slots = {0}, .places = {-1}}}, "a place is -1; the model has 106");
  refused({{.slots = {}, .places = {0}}}, "a sentence of text 0 has no term");
  refused(model.read(kText), "scores is [1,1]");
  saved = {};
  SentenceChooser gradients = nn::zeros_like(model);
  EXPECT_ERROR(model.backward(saved, scores, gradients), invalid_argument, HasSubstr("holds no forward pass"));
}

TEST(SplitSentences, SentencesEndAtFullStopsBeforeCapitals) {
  EXPECT_THAT(split_sentences(" One two.  Three? \u00c9t\u00e9!\n(\u201cFour.\u201d) 5 six"), ElementsAre("One two.", "Three?", "\u00c9t\u00e9!", "(\u201cFour.\u201d)", "5 six"));
  EXPECT_THAT(split_sentences("See e.g. Smith et al. The J. S. Bach of 3.5 Hz. and so on (cf. Fig. 2). End"), ElementsAre("See e.g. Smith et al. The J. S. Bach of 3.5 Hz. and so on (cf. Fig. 2).", "End"));
  EXPECT_THAT(split_sentences(" \n"), ElementsAre());
  EXPECT_THAT(split_sentences("."), ElementsAre("."));
}

}  // namespace
}  // namespace polyhead::models
