#include "polyhead/models/text_classifier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <numeric>

#include "models/test_error_matcher.h"
#include "polyhead/nn/initialisation.h"
#include "support/gradients.h"
#include "support/random.h"

namespace polyhead::models {
namespace {

using test::Random;
using testing::ElementsAre;
using testing::HasSubstr;

TextClassifierConfig tiny_classifier(DType dtype, std::string labels = "") {
  return {.vocabulary = 9, .longest = 6, .labels = std::move(labels), .model_width = 4, .hidden_width = 6, .layers = 2, .heads = 2, .terms = 4, .dropout = 0.25, .dtype = dtype, .seed = 3};
}

// A batch of two texts of 5 and 3 tokens. The ids behind the second text's tokens are arbitrary.
struct Example {
  Tensor ids = Tensor::of<std::int64_t>({2, 5}, {1, 2, 3, 1, 2, 8, 0, 4, 7, 7}), lengths = Tensor::of<std::int64_t>({2}, {5, 3});
  Tensor terms = Tensor::of<std::int64_t>({2, 3}, {0, 1, 3, 3, -1, -1}), shares = Tensor::of<double>({2}, {0.5, 2});
  Tensor segments;
  Example() {
    Random random(4);
    segments = random.tensor(DType::f64, {2, 5, 3});
  }
  TextClassifier::Batch batch() const { return {.ids = ids, .lengths = lengths, .segments = segments, .terms = terms, .shares = shares}; }
};

TextClassifier with_scores(const TextClassifierConfig& config) {
  TextClassifier model(config);
  nn::initialise_normal({{"scores", &model.scores}}, {.deviation = 0.1, .seed = 5});
  return model;
}

TEST(TextClassifier, GradientsAgreeWithCentralDifferences) {
  for (const nn::Mode mode : {nn::Mode::evaluation, nn::Mode::training}) {
    const Example example;
    Random random(6);
    TextClassifier model = with_scores(tiny_classifier(DType::f64, "a\tb\tc")), gradients = nn::zeros_like(model);
    const Tensor d_answers = random.tensor(DType::f64, {2, 3}), d_masses = random.tensor(DType::f64, {2, 2, 3});
    Tensor answers(DType::f64, {2, 3});
    TextClassifier::Saved saved;
    const auto forward = [&] { model.forward(example.batch(), answers, saved, {.mode = mode, .dropout_seed = 11}); };
    forward();
    model.backward(saved, d_answers, gradients, d_masses);
    test::expect_gradients(
        [&] {
          forward();
          return test::weighted_sum(answers, d_answers) + test::weighted_sum(saved.masses(), d_masses);
        },
        test::parameter_leaves(model, gradients));
  }
}

// Recomputes pooling and scores from the encoder's output, with plain loops.
TEST(TextClassifier, PoolingAndScoresAreAsDocumented) {
  const Example example;
  const TextClassifier model = with_scores(tiny_classifier(DType::f64));
  Tensor answers(DType::f64, {2, 1});
  TextClassifier::Saved saved;
  model.forward(example.batch(), answers, saved);
  const auto times = [](const nn::Linear& linear, const double* x, std::int64_t row) {
    double sum = linear.bias.data<double>()[row];
    for (std::int64_t e = 0; e < 4; ++e) sum += linear.weight.data<double>()[row * 4 + e] * x[e];
    return sum;
  };
  TextClassifier plain = model;
  fill(plain.scores, 0);
  Tensor without(DType::f64, {2, 1});
  TextClassifier::Saved other;
  plain.forward(example.batch(), without, other);
  for (std::int64_t b = 0; b < 2; ++b) {
    const std::int64_t length = example.lengths.data<std::int64_t>()[b];
    std::vector<double> read(4);
    for (std::int64_t n = 0; n < 2; ++n) {
      std::vector<double> p;
      double sum = 0;
      for (std::int64_t t = 0; t < length; ++t) {
        const double* y = saved.y.data<double>() + (b * 5 + t) * 4;
        double score = 0;
        for (std::int64_t h = 0; h < 2; ++h) score += model.pooling.query.data<double>()[n * 2 + h] * times(model.pooling.key, y, n * 2 + h);
        p.push_back(std::exp(score / std::sqrt(2.0))), sum += p.back();
      }
      for (std::int64_t t = 0; t < 5; ++t) EXPECT_NEAR(saved.p.data<double>()[(b * 2 + n) * 5 + t], t < length ? p[static_cast<std::size_t>(t)] / sum : 0, 1e-12);
      for (std::int64_t k = 0; k < 3; ++k) {
        double mass = 0;
        for (std::int64_t t = 0; t < length; ++t) mass += p[static_cast<std::size_t>(t)] / sum * example.segments.data<double>()[(b * 5 + t) * 3 + k];
        EXPECT_NEAR(Tensor::copy_of(saved.masses()).data<double>()[(b * 2 + n) * 3 + k], mass, 1e-12);
      }
      for (std::int64_t h = 0; h < 2; ++h)
        for (std::int64_t t = 0; t < length; ++t) read[static_cast<std::size_t>(n * 2 + h)] += p[static_cast<std::size_t>(t)] / sum * times(model.pooling.value, saved.y.data<double>() + (b * 5 + t) * 4, n * 2 + h);
    }
    EXPECT_NEAR(without.data<double>()[b], times(model.output, read.data(), 0), 1e-12) << b;
  }

  // The terms now have the scores 1, 10, 100 and 1000. The second text has only the last term.
  TextClassifier one = plain;
  for (std::int64_t i = 0; i < 4; ++i) one.scores.data<double>()[i] = std::pow(10, i);
  one.forward(example.batch(), answers, other);
  EXPECT_NEAR(answers.data<double>()[0] - without.data<double>()[0], 0.5 * 1011, 1e-9);
  EXPECT_NEAR(answers.data<double>()[1] - without.data<double>()[1], 2 * 1000, 1e-9);
}

TEST(TextClassifier, TokensBehindTheEndOfATextAreIgnored) {
  Example example;
  const TextClassifier model = with_scores(tiny_classifier(DType::f64));
  Tensor a(DType::f64, {2, 1}), b = a;
  TextClassifier::Saved saved;
  model.forward(example.batch(), a, saved);
  example.ids.data<std::int64_t>()[8] = 3;
  model.forward(example.batch(), b, saved);
  EXPECT_EQ(test::to_doubles(a), test::to_doubles(b));
  example.ids.data<std::int64_t>()[7] = 3;  // the last token of the second text
  model.forward(example.batch(), b, saved);
  EXPECT_NE(a.data<double>()[1], b.data<double>()[1]);
}

TEST(TextTerms, AreWordsStartsAndPairs) {
  const TextTerms found = terms_of("Don't like it, don't!");
  EXPECT_THAT(found.terms, ElementsAre("!", "!*", ",", ", _ t", ", don'", ",*", "don'", "don' _ !", "don' _ like", "don' t", "don'*", "it", "it ,", "it _ don'", "it*", "like", "like _ ,", "like it", "like*", "t", "t !", "t _ it", "t like", "t*"));
  EXPECT_NEAR(found.share, 10 / std::sqrt(8), 1e-12);
  EXPECT_THAT(terms_of("Égalité").terms, ElementsAre("égal*", "égalit*", "égalité"));
  EXPECT_TRUE(terms_of(" ").terms.empty());
}

TextModel small_model(const std::string& labels) {
  TextModel model{BytePairTokenizer::train(std::vector<std::string>{"good film", "bad film, so bad"}, {.lowercase = true, .special_tokens = {"<any>"}}), {}};
  TextClassifierConfig config = tiny_classifier(DType::f32, labels);
  config.vocabulary = model.tokenizer.vocabulary_size();
  model.terms = {"bad", "film", "film*", "so bad"};
  model.classifier = with_scores(config);
  return model;
}

TEST(TextClassifier, AFolderGivesTheSameAnswers) {
  for (const std::string labels : {"", "no\tperhaps\tyes"}) {
    const auto folder = std::filesystem::path(testing::TempDir()) / "text_classifier";
    const TextModel model = small_model(labels);
    save_text_model(model, folder);
    const TextModel loaded = load_text_model(folder);
    const ClassifiedText a = classify(model, "Bad film"), b = classify(loaded, "Bad film");
    EXPECT_EQ(a.rating, b.rating);
    EXPECT_EQ(a.probabilities, b.probabilities);
    EXPECT_EQ(loaded.classifier.config.labels, labels);
    const std::int64_t length = std::ssize(a.text.ids);
    EXPECT_EQ(a.attentions.shape(), (Shape{2, 2, length, length}));
    EXPECT_EQ(a.pooling.shape(), (Shape{2, length}));
    EXPECT_NEAR(std::accumulate(a.probabilities.begin(), a.probabilities.end(), 0.0), labels.empty() ? 0 : 1, 1e-12);
  }
}

TEST(TextClassifier, ScoresAreThoseOfTheTextsTerms) {
  const TextInput input = input_of(small_model(""), "So bad, films!");
  EXPECT_THAT(input.terms, ElementsAre(0, 2, 3));  // term 1, "film", is no word of the text
  EXPECT_NEAR(input.share, 10 / std::sqrt(5), 1e-12);
}

TEST(TextClassifier, TermsThatAreNotSortedOrTooFewAreErrors) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "text_terms";
  TextModel model = small_model("");
  model.terms.pop_back();
  save_text_model(model, folder);
  EXPECT_ERROR(load_text_model(folder), format, HasSubstr("has 3 terms; config.json says 4"));
  model.terms = {"bad", "film*", "film", "so bad"};
  save_text_model(model, folder);
  EXPECT_ERROR(load_text_model(folder), format, HasSubstr("line 3 does not come after the line before it"));
}

TEST(TextClassifier, APartOfARatingIsTheDifferenceWithoutThisPart) {
  const TextModel model = small_model("");
  const ClassifiedText whole = classify(model, "bad film");
  for (std::size_t head = 0; head < 2; ++head) {
    TextModel without = model;
    fill(without.classifier.output.weight.view().slice(1, static_cast<std::int64_t>(head) * 2, static_cast<std::int64_t>(head) * 2 + 2), 0);
    EXPECT_NEAR(whole.rating - classify(without, "bad film").rating, whole.head_parts[head], 1e-6) << head;
  }
  TextModel without = model;
  fill(without.classifier.scores, 0);
  EXPECT_NEAR(whole.rating - classify(without, "bad film").rating, whole.score_part, 1e-6);
  EXPECT_GT(std::abs(whole.score_part), 1e-3);
}

TEST(TextClassifier, ABatchOfTextsHasTheResultsOfTheSingleTexts) {
  const TextModel model = small_model("");
  std::vector<TextInput> texts;
  for (std::int64_t i = 0; i < 70; ++i)
    texts.push_back({.ids = std::vector<std::int64_t>(static_cast<std::size_t>(1 + i % 6), i % 9), .terms = std::vector<std::int64_t>(static_cast<std::size_t>(i % 3), i % 4), .share = 1.0 + static_cast<double>(i)});
  const Tensor all = classify_all(model.classifier, texts);
  for (const std::int64_t i : {0, 5, 69}) EXPECT_NEAR(classify_all(model.classifier, std::span(texts).subspan(static_cast<std::size_t>(i), 1)).data<float>()[0], all.data<float>()[i], 1e-5) << i;
}

TEST(TextClassifier, WrongInputsAreNamed) {
  const auto refused = [](auto change, const char* message) {
    TextClassifierConfig config = tiny_classifier(DType::f32);
    change(config);
    EXPECT_ERROR(TextClassifier{config}, invalid_argument, HasSubstr(message));
  };
  refused([](auto& c) { c.heads = 3; }, "3 heads do not divide a width of 4");
  refused([](auto& c) { c.layers = 0; }, "layers is 0");
  refused([](auto& c) { c.terms = -1; }, "terms is -1; it must be at least 0");
  refused([](auto& c) { c.labels = "one"; }, "there is one class, 'one'");

  const TextClassifier model(tiny_classifier(DType::f64));
  Example example;
  Tensor answers(DType::f64, {2, 1});
  TextClassifier::Saved saved;
  EXPECT_ERROR(model.backward(saved, answers, *std::make_unique<TextClassifier>(model)), invalid_argument, HasSubstr("saved holds no forward pass"));
  EXPECT_ERROR(model.forward(example.batch(), answers, saved, {.mode = nn::Mode::training}), invalid_argument, HasSubstr("needs a dropout_seed"));
  example.lengths.data<std::int64_t>()[1] = 6;
  EXPECT_ERROR(model.forward(example.batch(), answers, saved), invalid_argument, HasSubstr("a length is 6; it must be in [1,5]"));
  example.lengths.data<std::int64_t>()[1] = 0;
  EXPECT_ERROR(model.forward(example.batch(), answers, saved), invalid_argument, HasSubstr("a length is 0"));
  example.lengths.data<std::int64_t>()[1] = 3, example.ids.data<std::int64_t>()[0] = 9;
  EXPECT_ERROR(model.forward(example.batch(), answers, saved), invalid_argument, HasSubstr("a token is 9; the vocabulary has 9"));

  example.ids.data<std::int64_t>()[0] = 1, example.terms.data<std::int64_t>()[3] = 4;
  EXPECT_ERROR(model.forward(example.batch(), answers, saved), invalid_argument, HasSubstr("a term is 4; the model has 4"));

  const TextModel text = small_model("");
  EXPECT_ERROR(classify(text, ""), invalid_argument, HasSubstr("the text has no tokens"));
  EXPECT_ERROR(classify(text, "zzzzzzzzz"), invalid_argument, HasSubstr("the model takes at most 6"));
}

}  // namespace
}  // namespace polyhead::models
