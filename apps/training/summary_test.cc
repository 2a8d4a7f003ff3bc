#include "training/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <fstream>

#include "core/text.h"
#include "models/test_error_matcher.h"
#include "polyhead/executor.h"
#include "polyhead/nn/seed.h"
#include "training/run.h"
#include "training/sections.h"

namespace polyhead::training {
namespace {

using testing::HasSubstr;

// Abstracts whose summary equals the sentence with "we propose", which is neither the first nor the last. Sentences before it are background, sentences after it results.
std::filesystem::path abstracts(std::int64_t count) {
  const std::vector<std::string> nouns{"rivers", "engines", "flutes", "maps", "gardens", "clocks"}, verbs{"move", "age", "sound", "matter", "change"};
  const auto path = std::filesystem::path(testing::TempDir()) / "abstracts.jsonl";
  std::ofstream file(path);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint64_t seed = nn::derive_seed(4, static_cast<std::uint64_t>(i));
    const auto draw = [&](std::uint64_t number, std::uint64_t below) { return static_cast<std::size_t>(nn::derive_seed(seed, number) % below); };
    const std::size_t sentences = 4 + draw(0, 3), chosen = 1 + draw(1, sentences - 2);
    const std::string noun = nouns[draw(2, nouns.size())], verb = verbs[draw(3, verbs.size())];
    file << R"({"source": [)";
    for (std::size_t s = 0; s < sentences; ++s)
      file << (s > 0 ? ", \"" : "\"") << (s == chosen ? cat("We propose how ", noun, ' ', verb, '.') : cat(s > chosen ? "Tests show that many " : "Many ", nouns[draw(10 + s, nouns.size())], ' ', verbs[draw(20 + s, verbs.size())], " at ", i, '.')) << '"';
    file << R"(], "target": ["How )" << noun << ' ' << verb << ".\"]}\n";
  }
  return path;
}

TEST(Summary, LearnsToChooseTheSentenceThatTheSummaryRepeats) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "summary_model";
  std::filesystem::remove_all(folder);
  const auto data = abstracts(300);
  std::vector<double> first, second;
  for (std::vector<double>* losses : {&first, &second}) {
    set_num_threads(losses == &first ? 1 : 2);
    const std::unique_ptr<Task> task = summary_task({.data = data, .seed = 7});
    Plan plan = task->plan();
    plan.steps = 60, plan.validate_every = 30;
    run(*task, plan, {.folder = folder, .on_validation = [&](const Progress& p, const Validation&, bool) { losses->push_back(p.loss); }});
  }
  EXPECT_NEAR(first[0], 1.1136, 1e-3);  // losses of an earlier run
  EXPECT_NEAR(first[1], 0.2579, 1e-3);
  EXPECT_EQ(first, second) << "one thread and two threads differ";
  const auto rows = read_abstracts(data).rows;
  const SummaryScores scores = score_summaries(models::load_sentence_chooser(folder), rows);
  EXPECT_GE(scores.model, scores.best_sentence - 1);
  EXPECT_EQ(scores.cue_phrase, scores.best_sentence);
  EXPECT_LT(scores.first_sentence, scores.best_sentence - 40);
}

// Three heads are trained to read one section each; the fourth is not.
TEST(Summary, HeadsReadTheirSections) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "summary_heads";
  std::filesystem::remove_all(folder);
  const auto data = abstracts(300);
  const std::unique_ptr<Task> task = summary_task({.data = data, .seed = 7});
  Plan plan = task->plan();
  plan.steps = 120;
  run(*task, plan, {.folder = folder});
  const models::SentenceChooser model = models::load_sentence_chooser(folder);
  EXPECT_EQ(model.config.taught_heads, 3);
  const auto rows = read_abstracts(data).rows;
  std::array<double, 3> read{};
  for (const Abstract& abstract : rows) {
    const models::ChosenSentence answer = models::choose(model, abstract.sentences);
    const std::vector<Section> sections = sections_of(abstract.sentences);
    const auto count = sections.size();
    for (std::size_t head = 0; head < read.size(); ++head)
      for (std::size_t t = 0; t < count; ++t)
        for (std::size_t s = 0; s < count; ++s)
          if (sections[s] == static_cast<Section>(head)) read[head] += static_cast<double>(answer.attentions.data<float>()[(head * count + t) * count + s]) / static_cast<double>(count * rows.size());
  }
  for (std::size_t head = 0; head < read.size(); ++head) EXPECT_GT(read[head], 0.9) << kSectionNames[head];
}

TEST(Sections, SentencesGetTheirSectionFromTheirWords) {
  using enum Section;
  const std::vector<std::string> abstract{"Results of others vary.", "This is how it was.", "In this work we measure rain.", "The gauge is a bucket.", "Experiments show less rain than before.", "Our code is short.", "It outperforms all."};
  EXPECT_THAT(sections_of(abstract), testing::ElementsAre(background, background, method, method, result, method, result));
  EXPECT_THAT(sections_of(std::vector<std::string>{"This article is new.", "No."}), testing::ElementsAre(method, method));
  // no section is known, because no sentence speaks of the authors
  EXPECT_THAT(sections_of(std::vector<std::string>{"It rains.", "Were they wet?"}), testing::IsEmpty());
}

TEST(Sections, LossAndItsGradientAreThoseOfTheFormula) {
  using enum Section;
  const std::vector<std::vector<Section>> sections{{background, method, method}, {method, method, method}, {}};
  Tensor p(DType::f32, {3, 3, 3, 3}), d_p(DType::f32, p.shape()), none(DType::f32, p.shape());
  for (std::int64_t i = 0; i < p.numel(); ++i) p.data<float>()[i] = 0.125F * static_cast<float>(1 + i % 5);
  // Text 0 has a loss for two heads: the background head reads sentence 0, the method head sentences 1 and 2.
  double expected = 0;
  for (std::int64_t t = 0; t < 3; ++t) {
    const float *of_background = p.data<float>() + t * 3, *of_method = p.data<float>() + 9 + t * 3;
    expected -= 0.6 / 9 * (std::log(static_cast<double>(of_background[0])) + std::log(static_cast<double>(of_method[1]) + static_cast<double>(of_method[2])));
  }
  EXPECT_NEAR(section_loss(p, sections, 0.6, d_p), expected, 1e-5);
  for (std::int64_t i = 0; i < p.numel(); ++i) {
    const float before = p.data<float>()[i];
    const auto at = [&](float value) {
      p.data<float>()[i] = value;
      return section_loss(p, sections, 0.6, none);
    };
    const double slope = (at(before + 0.0078125F) - at(before - 0.0078125F)) / 0.015625;
    p.data<float>()[i] = before;
    EXPECT_NEAR(d_p.data<float>()[i], slope, 3e-3 * std::abs(slope)) << i;  // the difference quotient has a relative error of a third of (step / p)^2
  }
}

TEST(Summary, UnusableDataIsRefusedWithTheReason) {
  EXPECT_ERROR(summary_task({}), invalid_argument, HasSubstr("summarise needs --data FILE"));
  const auto path = std::filesystem::path(testing::TempDir()) / "few.jsonl";
  std::ofstream(path) << R"({"source": ["One."], "target": ["T"]})" << "\n{}\n";
  std::string note;
  EXPECT_ERROR(summary_task({.data = path, .note = [&](const std::string& line) { note = line; }}), invalid_argument, HasSubstr("few.jsonl has 1 abstract"));
  EXPECT_THAT(note, testing::StartsWith("1 of 2 lines is skipped: line 2: "));
}

}  // namespace
}  // namespace polyhead::training
