#include "training/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/text.h"
#include "models/test_error_matcher.h"
#include "polyhead/executor.h"
#include "polyhead/nn/seed.h"
#include "training/run.h"

namespace polyhead::training {
namespace {

using testing::HasSubstr;

// Abstracts whose summary equals the sentence with "we propose", which is neither the first nor the last.
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
      file << (s > 0 ? ", \"" : "\"") << (s == chosen ? cat("We propose how ", noun, ' ', verb, '.') : cat("Many ", nouns[draw(10 + s, nouns.size())], ' ', verbs[draw(20 + s, verbs.size())], " at ", i, '.')) << '"';
    file << R"(], "target": ["How )" << noun << ' ' << verb << ".\"]}\n";
  }
  return path;
}

TEST(Summary, LearnsWhichSentenceIsRepeated) {
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
  EXPECT_NEAR(first[0], 0.6443, 1e-3);  // recorded from an earlier run
  EXPECT_NEAR(first[1], 0.2271, 1e-3);
  EXPECT_EQ(first, second) << "one thread and two threads differ";
  const auto rows = read_abstracts(data).rows;
  const SummaryScores scores = score_summaries(models::load_sentence_chooser(folder), rows);
  EXPECT_GE(scores.model, scores.best_sentence - 1);
  EXPECT_EQ(scores.cue_phrase, scores.best_sentence);
  EXPECT_LT(scores.first_sentence, scores.best_sentence - 40);
}

TEST(Summary, DataThatDoesNotFitIsNamed) {
  EXPECT_ERROR(summary_task({}), invalid_argument, HasSubstr("summarise needs --data FILE"));
  const auto path = std::filesystem::path(testing::TempDir()) / "few.jsonl";
  std::ofstream(path) << R"({"source": ["One."], "target": ["T"]})" << "\n{}\n";
  std::string note;
  EXPECT_ERROR(summary_task({.data = path, .note = [&](const std::string& line) { note = line; }}), invalid_argument, HasSubstr("few.jsonl has 1 abstract"));
  EXPECT_THAT(note, testing::StartsWith("1 of 2 lines is skipped: line 2: "));
}

}  // namespace
}  // namespace polyhead::training
