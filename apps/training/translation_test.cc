#include "training/translation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>

#include "models/test_error_matcher.h"
#include "polyhead/executor.h"
#include "training/grammar.h"
#include "training/run.h"

namespace polyhead::training {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Translation, GuideLossHasItsGradient) {
  const std::vector<GuideTarget> targets{{0, 1, 0.5}, {0, 2, 0.5}, {2, 0, 1}};
  std::vector<double> p{0.2, 0.3, 0.5, 1, 0, 0, 0.6, 0.1, 0.3}, d_p(9, 7.0), unused(9);
  const double loss = guide_loss<double>(p.data(), 3, targets, 0.3, d_p.data());
  EXPECT_NEAR(loss, -0.15 * (0.5 * std::log(0.3) + 0.5 * std::log(0.5) + std::log(0.6)), 1e-6);
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double before = p[i], step = 1e-6;
    p[i] = before + step;
    const double above = guide_loss<double>(p.data(), 3, targets, 0.3, unused.data());
    p[i] = before - step;
    const double below = guide_loss<double>(p.data(), 3, targets, 0.3, unused.data());
    p[i] = before;
    EXPECT_NEAR(d_p[i] - 7, (above - below) / (2 * step), 1e-6) << i;
  }
}

TEST(Translation, TokensFindTheirWords) {
  // this tokenizer makes a token of each byte
  const auto tokenizer = models::BytePairTokenizer::train({}, {.special_tokens = models::Translator::special_tokens()});
  const std::string text = "l'eau est là";
  EXPECT_THAT(words_of_tokens(tokenizer.encode(text), text, {"l'", "eau", "est", "là"}), ElementsAre(-1, 0, 0, -1, 1, 1, 1, -1, 2, 2, 2, -1, 3, 3, 3));
  EXPECT_ERROR(words_of_tokens(tokenizer.encode(text), text, {"eau", "l'"}), invalid_argument, HasSubstr("'l'' is not in the text"));
}

TEST(Translation, GuidesOfJoinedPairsPointAtTheirOwnWords) {
  // This tokenizer makes two tokens of each word below: the mark of a space, and one byte.
  const auto tokenizer = models::BytePairTokenizer::train({}, {.special_tokens = models::Translator::special_tokens()});
  const std::vector<LinkedPair> both{{{"a b", "x y"}, 4, {{1, 0, 0}, {0, 0.25, 0.75}}}, {{"c", "z"}, 2, {{0.5, 0.5}}}};
  const Example example = joined_example(tokenizer, both);
  EXPECT_EQ(example.source, tokenizer.encode("a b c").ids);
  EXPECT_EQ(example.target, tokenizer.encode("x y z").ids);
  std::vector<std::vector<double>> shares(6, std::vector<double>(7));  // columns are source tokens; the last is the end token
  for (const Example::Guide& guide : example.guides) shares.at(static_cast<std::size_t>(guide.target)).at(static_cast<std::size_t>(guide.source)) += guide.share;
  const std::vector<double> x{0.5, 0.5, 0, 0, 0, 0, 0}, y{0, 0, 0.125, 0.125, 0, 0, 0.75}, z{0, 0, 0, 0, 0.25, 0.25, 0.5};
  EXPECT_THAT(shares, ElementsAre(x, x, y, y, z, z));
}

TEST(Translation, APairThatIsContinuedLosesItsFinalPunctuation) {
  const auto tokenizer = models::BytePairTokenizer::train({}, {.special_tokens = models::Translator::special_tokens()});
  const LinkedPair pair{{"I am here.", "J'y suis !"}, 9, {{0.5, 0.25, 0, 0.125, 0.125}, {0, 0, 1, 0, 0}, {0, 1, 0, 0, 0}, {0, 0, 0, 0.75, 0.25}}};
  const LinkedPair comma = without_end(tokenizer, pair, true), none = without_end(tokenizer, pair, false);
  EXPECT_EQ(comma.text.source + '|' + comma.text.target, "I am here,|J'y suis,");
  EXPECT_EQ(comma.shares, pair.shares) << "the comma has the shares of the full stop that it replaces";
  EXPECT_EQ(none.text.source + '|' + none.text.target, "I am here|J'y suis");
  EXPECT_THAT(none.shares, ElementsAre(ElementsAre(0.5, 0.25, 0, 0.125), ElementsAre(0, 0, 1, 0), ElementsAre(0, 1, 0, 0)));
  for (const auto& [source, target] : {std::pair("I am here", "J'y suis !"), {"I am here.", "J'y suis"}, {"!", "J'y suis !"}}) {
    const LinkedPair same = without_end(tokenizer, {{source, target}, 9, pair.shares}, false);
    EXPECT_EQ(same.text.source + same.text.target, std::string(source) + target);
    EXPECT_EQ(same.shares, pair.shares);
  }
  for (const LinkedPair& one : {comma, none}) {  // each target word must have a list of shares
    EXPECT_EQ(tokenizer.encode(one.text.target).word_spans.size(), one.shares.size());
    EXPECT_EQ(tokenizer.encode(one.text.source).word_spans.size() + 1, one.shares[0].size());
  }
}

TEST(Translation, InventsAWordAndItsTranslation) {
  const auto tokenizer = models::BytePairTokenizer::train({}, {.special_tokens = models::Translator::special_tokens()});
  // The source words of the target words: "L'" and "été" come from "don'", "maisons" comes from "houses".
  const LinkedPair pair{{"The houses, don't", "L'été maisons"}, 9, {{0, 0, 0, 1, 0, 0}, {0, 0, 0, 1, 0, 0}, {0, 0.9, 0, 0, 0, 0.1}}};
  std::int64_t same = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const LinkedPair other = with_invented_word(tokenizer, pair, seed);
    EXPECT_THAT(other.text.source, testing::MatchesRegex("The ([a-z][aeiou]){2,3}, don't"));
    EXPECT_THAT(other.text.target, testing::MatchesRegex("L'été ([a-z][aeiou]){2,3}"));
    EXPECT_EQ(other.shares, pair.shares);
    same += other.text.source.substr(4, other.text.source.find(',') - 4) == other.text.target.substr(std::string("L'été ").size());
  }
  EXPECT_NEAR(static_cast<double>(same), 50, 20);
  LinkedPair unsure = pair;
  unsure.shares[2] = {0, 0.5, 0, 0, 0, 0.5};
  EXPECT_EQ(with_invented_word(tokenizer, unsure, 0).text.source, pair.text.source);
}

TEST(Translation, LearnsFromAFileOfSentencePairs) {
  const auto data = std::filesystem::path(testing::TempDir()) / "pairs.tsv", folder = std::filesystem::path(testing::TempDir()) / "translation_model";
  std::filesystem::remove_all(folder);
  std::ofstream file(data);
  for (std::uint64_t i = 0; i < 150; ++i) {
    const AlignedPair pair = grammar_sentence(GrammarPart::training, 3, i);
    file << sentence_text(pair.source, Language::english) << '\t' << sentence_text(pair.target, Language::french) << '\n';
  }
  file.close();
  std::vector<double> first, second;
  std::atomic<bool> stop = false;
  const auto train = [&](std::vector<double>& losses, std::int64_t stop_at, bool resume) {
    const std::unique_ptr<Task> task = translation_task({.data = data, .seed = 7});
    Plan plan = task->plan();
    plan.steps = 8, plan.validate_every = 4, plan.average = 0;
    run(*task, plan, {.folder = folder, .resume = resume, .stop = &stop, .on_step = [&](const Progress& p) { stop = p.step == stop_at; },
                      .on_validation = [&](const Progress& p, const Validation&, bool) { losses.push_back(p.loss); }});
  };
  set_num_threads(1), train(first, 0, false);
  set_num_threads(2), train(second, 4, false), train(second, 0, true);
  EXPECT_NEAR(first[0], 8.9547, 1e-3);  // the two losses are those of an earlier run
  EXPECT_NEAR(first[1], 8.0516, 1e-3);
  EXPECT_EQ(first, second) << "the losses differ between one thread without a stop and two threads with a stop in the second epoch";
  const models::Translator model = models::load_translator(folder);
  EXPECT_EQ(model.config.layers, 3);
  std::string text = "red";
  for (int i = 0; i < 120; ++i) text += " red";
  const TranslationScore score = score_translations(model, {{text, {""}}, {"red", {"rouge"}}});
  EXPECT_EQ(score.too_long, 1);
  EXPECT_EQ(score.texts[0], "") << "a text that is too long must not be translated";
}

}  // namespace
}  // namespace polyhead::training
