#include "training/classification.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <map>

#include "core/text.h"
#include "models/test_error_matcher.h"
#include "polyhead/executor.h"
#include "polyhead/nn/seed.h"
#include "training/run.h"

namespace polyhead::training {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::filesystem::path write(const std::string& name, const std::string& text) {
  const auto path = std::filesystem::path(testing::TempDir()) / name;
  std::ofstream(path) << text;
  return path;
}

// Sentences that say "the <thing> is <opinion>" in several ways, rated by the opinion.
std::string opinions(std::int64_t count, bool labels) {
  const std::vector<std::string> things{"screen", "menu", "sound", "handle", "lens", "box", "plot", "song"}, good{"bright", "lovely", "clever", "sturdy"}, bad{"dull", "broken", "clumsy", "noisy"},
      frames{"The X is Y", "this X looks Y", "a Y X", "I find its X Y", "what a Y X that is"};
  std::string text;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto draw = [&](std::uint64_t of, std::size_t n) { return nn::derive_seed(nn::derive_seed(1, static_cast<std::uint64_t>(i)), of) % n; };
    const bool positive = draw(0, 2) == 0;
    std::string sentence = frames[draw(1, 5)];
    sentence.replace(sentence.find('X'), 1, things[draw(2, 8)]);
    sentence.replace(sentence.find('Y'), 1, (positive ? good : bad)[draw(3, 4)]);
    text += cat(labels ? (positive ? "praise" : "blame") : (positive ? "2" : "-1.5"), '\t', sentence, '\n');
  }
  return text;
}

TEST(Classification, LearnsOpinionsAndReadsBothHalves) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "classification_model";
  const auto data = write("opinions.tsv", opinions(400, false));
  std::filesystem::remove_all(folder);
  const auto folder_of_one = std::filesystem::path(testing::TempDir()) / "classification_model_of_one_thread";
  std::filesystem::remove_all(folder_of_one);
  std::vector<double> first, second;
  const auto train = [&](int threads, const std::filesystem::path& to, std::int64_t stop_at) {
    set_num_threads(threads);
    const std::unique_ptr<Task> task = classification_task({.data = data, .seed = 7});
    Plan plan = task->plan();
    plan.steps = 240, plan.validate_every = 120, plan.peak_rate = 3e-3;
    std::atomic<bool> stop = false;
    run(*task, plan, {.folder = to, .stop = &stop, .on_step = [&](const Progress& p) { stop = p.step == stop_at; },
                      .on_validation = [&](const Progress& p, const Validation&, bool) { (threads == 1 ? second : first).push_back(p.loss); }});
  };
  train(2, folder, 0);
  train(1, folder_of_one, 120);  // only the first of the two reported losses is needed to compare one thread with two
  EXPECT_NEAR(first[0], 1.6004, 1e-3);  // this loss and the next are those of an earlier run
  EXPECT_NEAR(first[1], 0.5767, 1e-3);
  EXPECT_EQ(second, std::vector<double>{first[0]}) << "one thread and two threads differ";

  const models::TextModel model = models::load_text_model(folder);
  const auto none = [](const std::string& line) { ADD_FAILURE() << line; };
  const ScoredTexts texts(model, read_classified_texts(data), none);
  const ClassificationScore score = score_texts(model, texts);
  EXPECT_EQ(score.counted, 400);
  EXPECT_GE(score.accuracy, 0.97);
  EXPECT_GE(score.correlation, 0.9);
  const Halves halves = score_halves(model, two_sided_texts(model, texts.data, 50, 1));
  EXPECT_EQ(halves.texts, 50);
  EXPECT_GE(halves.both, 25);

  // A copy of the model without term scores: its answers come from the heads alone.
  models::TextModel heads = model;
  fill(heads.classifier.scores, 0);
  EXPECT_GE(score_texts(heads, texts).correlation, 0.9);

  // Only terms that occur in at least two texts get a score; the score's sign is that of these texts' ratings.
  const auto score_of = [&](const std::string& term) {
    const auto at = std::ranges::lower_bound(model.terms, term);
    return at != model.terms.end() && *at == term ? model.classifier.scores.data<float>()[at - model.terms.begin()] : 0;
  };
  EXPECT_GT(score_of("love*"), 10 * std::abs(score_of("this")));
  EXPECT_LT(score_of("brok*"), -10 * std::abs(score_of("this")));
  std::map<std::string, int> texts_with;
  for (const std::string& text : texts.data.texts)
    for (const std::string& term : models::terms_of(text).terms) ++texts_with[term];
  EXPECT_LT(model.terms.size(), texts_with.size());
  for (const std::string& term : model.terms) EXPECT_GE(texts_with[term], 2) << term;

  // If a head is left out, the rating of each text must change by what that head adds to the rating.
  double part = 0;
  for (const std::string& text : texts.data.texts) part += std::abs(models::classify(model, text).head_parts[kNegativeHead]) / 400;
  const std::vector<WithoutHead> without = score_without_heads(model, texts);
  const auto& config = model.classifier.config;
  ASSERT_EQ(std::ssize(without), (config.layers + 1) * config.heads);
  const WithoutHead& row = without[static_cast<std::size_t>(config.layers * config.heads + kNegativeHead)];
  EXPECT_EQ(row.layer, config.layers);
  EXPECT_NEAR(row.change, part, 1e-5);
}

TEST(Classification, TextsThatAreTooLongTogetherAreNotJoined) {
  // A single word of many tokens. Joining is limited to texts of 20 words, and this limit does not limit the number of tokens.
  std::string text;
  for (int i = 0; i < 60; ++i) {
    std::string characters;
    for (int k = 0; k < 60; ++k) characters += cat("\xe4\xb8", static_cast<char>(0x80 + (7 * i + 11 * k * k) % 60));
    text += cat(i % 2 == 0 ? "2" : "-2", '\t', characters, '\n') + (i % 2 == 0 ? "2\tfine\n" : "-2\tawful\n");
  }
  const std::unique_ptr<Task> task = classification_task({.data = write("long.tsv", text), .seed = 7});
  for (std::int64_t step = 1; step <= 6; ++step) EXPECT_TRUE(std::isfinite(task->step(step).loss));
  EXPECT_TRUE(std::isfinite(task->validate().score));
}

TEST(Classification, LabelsMayLookLikeRatings) {
  const auto data = read_classified_texts(write("mixed.tsv", "negative\tdull\nmixed\ta bit of both\nmixed\tso so\nbest\tlovely\n"));
  EXPECT_THAT(data.labels, ElementsAre("best", "mixed", "negative"));
}

TEST(Classification, LearnsLabels) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "label_model";
  std::filesystem::remove_all(folder);
  const auto data = write("labels.tsv", "no tab\n" + opinions(200, true));
  std::vector<std::string> notes;
  const std::unique_ptr<Task> task = classification_task({.data = data, .seed = 7, .note = [&](const std::string& line) { notes.push_back(line); }});
  EXPECT_THAT(notes, ElementsAre(HasSubstr("line 1")));
  Plan plan = task->plan();
  plan.steps = 120;
  const RunResult result = run(*task, plan, {.folder = folder});
  EXPECT_GE(result.best->score, 0.95) << result.best->text;
  const models::TextModel model = models::load_text_model(folder);
  EXPECT_THAT(model.classifier.config.label_list(), ElementsAre("blame", "praise"));
  const auto ignore = [](const std::string&) {};
  // Labels are matched by name: "praise" is number 0 in this data, but not in the model.
  EXPECT_GE(score_texts(model, {model, {.texts{"a lovely song", "this box looks broken"}, .ratings{0, 1}, .labels{"praise", "blame"}}, ignore}).accuracy, 1);
  EXPECT_ERROR(ScoredTexts(model, {.texts{"a song"}, .ratings{0}, .labels{"fun"}}, ignore), invalid_argument, HasSubstr("does not know the label 'fun'"));
  EXPECT_ERROR(ScoredTexts(model, {.texts{"a song"}, .ratings{0}}, ignore), invalid_argument, HasSubstr("the model answers with labels, but the file has ratings"));
}

TEST(Classification, TwoSidedTextsNameTheirParts) {
  const ClassifiedTexts data{.texts{"Fine sound!", "A good lens", "fair", "It broke.", "weak"}, .ratings{2, 3, 0.5, -2, -1}};
  const models::TextModel model{models::BytePairTokenizer::train(data.texts), {}};
  const std::vector<TwoSidedText> texts = two_sided_texts(model, data, 20, 1);
  ASSERT_EQ(texts.size(), 20U);
  std::size_t turned = 0;
  for (const TwoSidedText& text : texts) {
    const auto part = [&](models::ByteSpan span) { return text.text.substr(static_cast<std::size_t>(span.first), static_cast<std::size_t>(span.last - span.first)); };
    EXPECT_THAT(part(text.positive), testing::AnyOf("Fine sound", "A good lens"));
    EXPECT_THAT(part(text.negative), testing::AnyOf("It broke", "weak"));
    const bool negative_first = text.negative.first == 0;
    turned += negative_first ? 1 : 0;
    EXPECT_EQ(text.text, negative_first ? part(text.negative) + ", but " + part(text.positive) : part(text.positive) + ", but " + part(text.negative));
  }
  EXPECT_GT(turned, 0U);
  EXPECT_LT(turned, 20U);
  EXPECT_TRUE(two_sided_texts(model, {.texts{"fair"}, .ratings{0.5}}, 20, 1).empty());
}

TEST(Classification, LongTextsAreLeftOutAndCounted) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "x.";
  const auto data = write("long.tsv", opinions(60, false) + "1\t" + text + '\n');
  std::vector<std::string> notes;
  classification_task({.data = data, .seed = 7, .note = [&](const std::string& line) { notes.push_back(line); }});
  EXPECT_THAT(notes, ElementsAre("1 text of more than 256 tokens left out"));
  EXPECT_ERROR(classification_task({.seed = 7}), invalid_argument, HasSubstr("classify needs --data FILE"));
  EXPECT_ERROR(classification_task({.data = write("one.tsv", "a\tgood\na\tbad\n"), .seed = 7}), invalid_argument, HasSubstr("has 1 label"));
}

}  // namespace
}  // namespace polyhead::training
