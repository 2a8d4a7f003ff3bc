#include <gmock/gmock.h>

#include <cmath>

#include "polyhead/error.h"
#include "training/bag_of_words.h"
#include "training/summary_baselines.h"
#include "training/word_alignment.h"

namespace polyhead::training {
namespace {

using testing::ElementsAre;

TEST(BagOfWords, SplitsATextIntoWordsAndSigns) {
  EXPECT_THAT(words_and_signs("Don\u2019t STOP, ça va\u00a0?!"), ElementsAre("don't", "stop", ",", "ça", "va", "?", "!"));
  EXPECT_THAT(words_and_signs(" \t"), ElementsAre());
}

// With one term, x is 1 for a text that has the term and 0 for another, so there are two normal equations. Texts a, a, "" with ratings 3, 1, -1 and
// penalty 2 give (2 + 2) w + 2 c = 4 and 2 w + 3 c = 3, hence w = 3/4 and c = 1/2.
TEST(BagOfWords, SolvesRidgeRegression) {
  const std::vector<std::string> texts{"a", "A", ""};
  const BagOfWords model(texts, std::vector<double>{3, 1, -1}, {.ridge{.penalty = 2}});
  EXPECT_EQ(model.terms(), 1);
  EXPECT_NEAR(model.predict("a"), 1.25, 1e-9);
  EXPECT_NEAR(model.predict("unknown"), 0.5, 1e-9);
  EXPECT_THROW(BagOfWords(texts, std::vector<double>{1}), Error);
}

// The expected numbers are those of scikit-learn 1.9: Ridge(alpha=0.5) on TfidfVectorizer(ngram_range=(1, 2), binary=True, token_pattern=r"\w+").
TEST(BagOfWords, EqualsScikitLearn) {
  const std::vector<std::string> texts{"good film", "bad film", "not good", "very good very good film", "not bad"};
  const BagOfWords model(texts, std::vector<double>{2, -2, -1.5, 3, 0.5}, {.ridge{.penalty = 0.5}});
  EXPECT_EQ(model.terms(), 11);
  EXPECT_NEAR(model.predict("good film"), 1.4539938351549182, 1e-9);
  EXPECT_NEAR(model.predict("not a bad film"), -1.0534093433256144, 1e-9);
}

TEST(IbmModel2, LearnsTranslationsAndOrder) {
  std::vector<TokenPair> pairs;
  for (int i = 0; i < 5; ++i) {
    pairs.push_back({{"the", "house"}, {"la", "maison"}});
    pairs.push_back({{"the", "blue", "house"}, {"la", "maison", "bleue"}});
    pairs.push_back({{"the", "flower"}, {"la", "fleur"}});
    pairs.push_back({{"blue"}, {"bleue"}});
  }
  const IbmModel2 model(pairs);
  const TokenPair seen{{"the", "blue", "flower"}, {"la", "fleur", "bleue"}};
  const auto links = model.align(seen);
  ASSERT_EQ(links.size(), 3U);
  EXPECT_EQ(links[0].source, 0);
  EXPECT_EQ(links[1].source, 2);
  EXPECT_EQ(links[2].source, 1);
  for (const auto& row : model.posterior(seen)) {
    double sum = 0;
    for (const double p : row) sum += p;
    EXPECT_NEAR(sum, 1, 1e-12);
  }
  // The model knows none of these words, so only their positions decide.
  const auto unknown = model.posterior({{"x", "y"}, {"u", "v"}});
  EXPECT_GT(unknown[0][0], unknown[0][1]);
  EXPECT_NEAR(unknown[1][1] / unknown[1][0], std::exp(4 * 0.5), 1e-9);
  EXPECT_TRUE(model.align({{}, {"la"}}).empty());
}

TEST(IbmModel2, AgreedPosteriorIsTheProductOfBothDirections) {
  // The posterior has two target tokens and one source token. The reverse posterior has one row, for the source token; its last column means "no target token".
  const auto p = agreed_posterior({{0.5, 0.5}, {0.75, 0.25}}, {{0.8, 0.1, 0.1}});
  EXPECT_THAT(p[0], testing::ElementsAre(testing::DoubleNear(0.8, 1e-12), testing::DoubleNear(0.2, 1e-12)));
  EXPECT_THAT(p[1], testing::ElementsAre(testing::DoubleNear(0.25, 1e-12), testing::DoubleNear(0.75, 1e-12)));
}

TEST(IbmModel2, DiagonalLinksEachTargetToken) {
  const auto sources = [](std::int64_t source, std::int64_t target) {
    std::vector<std::int64_t> result;
    for (const Link& link : diagonal_links(source, target)) result.push_back(link.source);
    return result;
  };
  EXPECT_THAT(sources(3, 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(sources(2, 4), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(sources(4, 2), ElementsAre(1, 3));
  EXPECT_THAT(sources(0, 2), ElementsAre());
}

TEST(SummaryBaselines, ACuePhraseMatchesWholeWordsOnly) {
  EXPECT_EQ(cue_phrase_sentence(std::vector<std::string>{"Swe propose.", "Now We  Propose, boldly.", "In this paper"}), 1);
  EXPECT_EQ(cue_phrase_sentence(std::vector<std::string>{"A.", "B."}), 0);
  const std::vector<Abstract> abstracts{{.sentences = {"a b", "c"}, .targets = {"x", "c d"}}, {.sentences = {"a"}, .targets = {"a"}}};
  EXPECT_NEAR(mean_rouge_1(abstracts, std::vector<std::int64_t>{1, 0}), 100 * (2.0 / 3 + 1) / 2, 1e-12);
  EXPECT_THROW(mean_rouge_1(abstracts, std::vector<std::int64_t>{2, 0}), Error);
}

}  // namespace
}  // namespace polyhead::training
