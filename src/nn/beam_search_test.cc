// Compares beam search with a list of all texts of a model whose logits depend on the whole text.
#include "polyhead/nn/beam_search.h"

#include <gmock/gmock.h>

#include <cmath>

#include "polyhead/tensor.h"
#include "support/compare.h"
#include "support/random.h"

namespace polyhead::nn {
namespace {

using test::error_message;
using test::Random;
using Text = std::vector<std::int64_t>;

constexpr std::int64_t kTokens = 4, kEnd = 3;

std::vector<double> log_probabilities(const Text& text) {
  std::uint64_t seed = 17;
  for (const std::int64_t token : text) seed = seed * 31 + static_cast<std::uint64_t>(token) + 1;
  Random random(seed);
  std::vector<double> x(kTokens);
  double sum = 0;
  for (double& value : x) sum += std::exp(value = random.real(-2, 2));
  for (double& value : x) value -= std::log(sum);
  return x;
}

// Keeps the text of each row, as a cache would, and returns the logits of the next token. A different constant is added to the logits of each row.
class Model {
 public:
  explicit Model(std::int64_t rows) : texts_(static_cast<std::size_t>(rows)), logits_(DType::f64, {rows, kTokens}) {}
  ConstTensorView operator()(std::span<const std::int64_t> tokens, std::span<const std::int64_t> parents) {
    const std::vector<Text> before = texts_;
    for (std::size_t row = 0; row < texts_.size(); ++row) {
      texts_[row] = before[static_cast<std::size_t>(parents[row])];
      texts_[row].push_back(tokens[row]);
      const std::vector<double> x = log_probabilities(texts_[row]);
      for (std::size_t c = 0; c < x.size(); ++c) logits_.data<double>()[row * x.size() + c] = x[c] + static_cast<double>(row);
    }
    ++steps;
    return logits_;
  }
  int steps = 0;

 private:
  std::vector<Text> texts_;
  Tensor logits_;
};

// Appends to `all` every hypothesis that continues `text`. The first token of `text` is the start token.
void enumerate(const Text& text, double log_probability, std::int64_t most, double penalty, std::vector<Hypothesis>& all) {
  const std::vector<double> x = log_probabilities(text);
  for (std::int64_t token = 0; token < kTokens; ++token) {
    Text longer = text;
    longer.push_back(token);
    const double sum = log_probability + x[static_cast<std::size_t>(token)];
    const auto length = static_cast<double>(longer.size() - 1);
    if (token == kEnd || static_cast<std::int64_t>(length) == most) {
      all.push_back({.tokens = {longer.begin() + 1, longer.end()}, .log_probability = sum, .score = sum / std::pow(length, penalty), .ended = token == kEnd});
    } else {
      enumerate(longer, sum, most, penalty, all);
    }
  }
}

void expect_equal(const std::vector<Hypothesis>& found, const std::vector<Hypothesis>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].tokens, expected[i].tokens) << i;
    EXPECT_NEAR(found[i].log_probability, expected[i].log_probability, 1e-12);
    EXPECT_NEAR(found[i].score, expected[i].score, 1e-12);
    EXPECT_EQ(found[i].ended, expected[i].ended);
  }
}

TEST(BeamSearch, WithBeamsForAllHypothesesFindsTheBestOnes) {
  constexpr std::int64_t kBeams = 200, kMost = 5;  // at most 3^4 hypotheses are open in a step, and there are 283 hypotheses in all
  for (const double penalty : {0.0, 1.0, 2.0, -1.0}) {
    SCOPED_TRACE(penalty);
    const Text starts{0, 2, 1};
    Model model(kBeams * 3);
    const auto found = beam_search(starts, std::ref(model), {.beams = kBeams, .end_token = kEnd, .max_tokens = kMost, .length_penalty = penalty});
    ASSERT_EQ(found.size(), starts.size());
    for (std::size_t i = 0; i < starts.size(); ++i) {
      std::vector<Hypothesis> all;
      enumerate({starts[i]}, 0, kMost, penalty, all);
      std::ranges::stable_sort(all, std::ranges::greater{}, &Hypothesis::score);
      all.resize(kBeams);
      expect_equal(found[i], all);
    }
  }
}

TEST(BeamSearch, WithOneBeamTakesTheLikeliestToken) {
  for (std::int64_t start = 0; start < 3; ++start) {
    Text text{start};
    while (text.size() < 8) {
      const std::vector<double> x = log_probabilities(text);
      text.push_back(std::ranges::max_element(x) - x.begin());
    }
    Model model(1);
    const auto found = beam_search(Text{start}, std::ref(model), {.beams = 1, .max_tokens = 7});
    ASSERT_EQ(found[0].size(), 1u);
    EXPECT_EQ(found[0][0].tokens, Text(text.begin() + 1, text.end()));
    EXPECT_EQ(model.steps, 7);
  }
}

TEST(BeamSearch, SequencesDoNotChangeEachOther) {
  const Text starts{0, 1, 2};
  const BeamSearchOptions options{.beams = 3, .end_token = kEnd, .max_tokens = 7};
  Model together(9);
  const auto all = beam_search(starts, std::ref(together), options);
  for (std::size_t i = 0; i < starts.size(); ++i) {
    Model alone(3);
    expect_equal(beam_search(Text{starts[i]}, std::ref(alone), options)[0], all[i]);
  }
}

TEST(BeamSearch, StopsWhenNoHypothesisCanBecomeBetter) {
  // The end token has probability 0.9 in every step. The hypothesis that ends in the first step is therefore the best, and the search must stop there.
  Tensor logits(DType::f64, {1, 2});
  logits.data<double>()[0] = std::log(0.1), logits.data<double>()[1] = std::log(0.9);
  int steps = 0;
  const auto found = beam_search(Text{0},
                                 [&](auto, auto) {
                                   ++steps;
                                   return ConstTensorView(logits);
                                 },
                                 {.beams = 1, .end_token = 1, .max_tokens = 50, .length_penalty = 0});
  EXPECT_EQ(found[0][0].tokens, Text{1});
  EXPECT_TRUE(found[0][0].ended);
  EXPECT_EQ(steps, 1);
  EXPECT_TRUE(beam_search(Text{}, [&](auto, auto) { return ConstTensorView(logits); }, {.max_tokens = 1}).empty());
}

TEST(BeamSearch, GoesOnWhileAnOpenHypothesisMayBecomeBetter) {
  // The end token has probability 0.55 in the first step and 0.999 in the second. A text of two tokens has the score (log 0.45) / 2, which is better than log
  // 0.55, the score of the text of one token.
  Tensor logits(DType::f64, {1, 2});
  double end = 0.55;
  const auto found = beam_search(Text{0},
                                 [&](auto, auto) {
                                   logits.data<double>()[0] = std::log(1 - end), logits.data<double>()[1] = std::log(end);
                                   end = 0.999;
                                   return ConstTensorView(logits);
                                 },
                                 {.beams = 1, .end_token = 1, .max_tokens = 5});
  EXPECT_EQ(found[0][0].tokens, (Text{0, 1}));
}

TEST(BeamSearch, LogitsOfRowsWithoutAnOpenHypothesisAreNotRead) {
  // In the first step only row 0 has an open hypothesis. One of its three classes has probability 0, so two hypotheses continue.
  Tensor logits = Tensor::of<double>({3, 3}, {0, -1, -HUGE_VAL, std::nan(""), 0, 0, std::nan(""), 0, 0});
  int steps = 0;
  const auto step = [&](auto, auto) {
    if (++steps == 2) logits.data<double>()[3] = 0;  // from the second step on, two of the three rows have an open hypothesis
    return ConstTensorView(logits);
  };
  EXPECT_EQ(beam_search(Text{0}, step, {.beams = 3, .max_tokens = 2})[0].size(), 3u);
  EXPECT_EQ(steps, 2);
}

TEST(BeamSearch, ErrorsSayWhatWasGivenAndWhatIsAllowed) {
  const Tensor logits(DType::f32, {2, 3}), poisoned = Tensor::of<float>({2, 1}, {std::nanf(""), 0});
  const auto message = [&](const Tensor& given, const BeamSearchOptions& options) {
    return error_message([&] { beam_search(Text{0}, [&](auto, auto) { return ConstTensorView(given); }, options); });
  };
  EXPECT_EQ(message(logits, {.beams = 0, .max_tokens = 1}), "beam_search: beams is 0; it must be at least 1");
  EXPECT_EQ(message(logits, {.beams = 2}), "beam_search: max_tokens is 0; it must be at least 1");
  EXPECT_EQ(message(logits, {.beams = 2, .end_token = -2, .max_tokens = 1}), "beam_search: end_token is -2; it must be in [0,3)");
  EXPECT_EQ(message(logits, {.beams = 2, .end_token = 3, .max_tokens = 1}), "beam_search: end_token is 3; it must be in [0,3)");
  EXPECT_EQ(message(logits, {.beams = 3, .max_tokens = 1}), "beam_search: the step gave logits [2,3]; they must be [3,3]");
  EXPECT_EQ(message(poisoned, {.beams = 2, .max_tokens = 1}), "beam_search: row 0 of logits holds NaN or infinity");
  EXPECT_EQ(message(logits, {.beams = 2, .max_tokens = 1, .length_penalty = HUGE_VAL}), "beam_search: length_penalty is inf; it must be finite");
}

}  // namespace
}  // namespace polyhead::nn
