#include "training/run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "models/test_error_matcher.h"
#include "polyhead/io/parameters.h"
#include "polyhead/nn/linear.h"
#include "training/order.h"

namespace polyhead::training {
namespace {

using testing::HasSubstr;

// A task with one parameter w that learns y = 3 x. Its score says how close w is to 3; if `scores` is given, the scores are taken from it in order.
class Line final : public Task {
 public:
  std::vector<double> scores;
  std::atomic<bool> stop = false;
  std::int64_t stop_after = 0;

  std::vector<std::string> description() const override { return {}; }
  Plan plan() const override { return {.steps = 40, .validate_every = 10, .peak_rate = 0.2, .warmup_steps = 5, .average = 0.9}; }
  nn::NamedParameters parameters() override { return nn::parameters(line_); }
  nn::NamedParameters gradients() override { return nn::parameters(gradient_); }
  StepResult step(std::int64_t number) override {
    const float x = 1 + static_cast<float>(number % 3), error = x * (weight() - 3);
    gradient_.weight.data<float>()[0] = 2 * error * x;
    if (number == stop_after) stop = true;
    return {error * error, 1};
  }
  Validation validate() override {
    if (scores.empty()) return {-std::abs(weight() - 3.0), "close"};
    const double score = scores[validations_++];
    return {score, "score"};
  }
  void save(const std::filesystem::path& folder) const override { io::save_parameters(line_, folder / "line.safetensors"); }
  float weight() const { return line_.weight.data<float>()[0]; }

 private:
  nn::Linear line_{{.in_width = 1, .out_width = 1, .bias = false, .seed = 1}}, gradient_{nn::zeros_like(line_)};
  std::size_t validations_ = 0;
};

std::filesystem::path fresh_folder(const std::string& name) {
  const auto folder = std::filesystem::path(testing::TempDir()) / name;
  std::filesystem::remove_all(folder);
  return folder;
}

float saved_weight(const std::filesystem::path& folder) { return io::open_tensors(folder / "line.safetensors").at("weight").data<float>()[0]; }

TEST(Run, LearnsAndRemovesItsCheckpoint) {
  const auto folder = fresh_folder("run_learns");
  Line task;
  const RunResult result = run(task, task.plan(), {.folder = folder});
  EXPECT_EQ(result.end, RunEnd::complete);
  EXPECT_EQ(result.steps, 40);
  EXPECT_NEAR(saved_weight(folder), 3, 0.4);  // the moving average, which is validated, lags behind the parameter
  EXPECT_NEAR(task.weight(), 3, 0.05);
  EXPECT_FALSE(std::filesystem::exists(folder / kCheckpoint));
}

TEST(Run, AResumedRunHasTheBitsOfAnUninterruptedOne) {
  const auto whole = fresh_folder("run_whole");
  Line reference;
  run(reference, reference.plan(), {.folder = whole});
  for (const std::int64_t stop_after : {1, 9, 10, 25, 39}) {
    SCOPED_TRACE(stop_after);
    const auto folder = fresh_folder("run_stopped");
    Line first;
    first.stop_after = stop_after;
    const RunResult stopped = run(first, first.plan(), {.folder = folder, .identity = "line", .stop = &first.stop});
    ASSERT_EQ(stopped.end, RunEnd::stopped);
    Line second;
    EXPECT_ERROR(run(second, second.plan(), {.folder = folder, .identity = "line"}), invalid_argument, HasSubstr("resume that run"));
    EXPECT_ERROR(run(second, second.plan(), {.folder = folder, .identity = "other", .resume = true}), invalid_argument, HasSubstr("is of another run (line)"));
    const RunResult result = run(second, second.plan(), {.folder = folder, .identity = "line", .resume = true});
    EXPECT_EQ(result.end, RunEnd::complete);
    EXPECT_EQ(second.weight(), reference.weight());
    EXPECT_EQ(saved_weight(folder), saved_weight(whole));
  }
}

TEST(Run, KeepsTheBestModelAndEndsWithoutImprovement) {
  const auto folder = fresh_folder("run_best");
  Line task;
  task.scores = {1, 3, 2, 2.5};
  Plan plan = task.plan();
  plan.steps = 80, plan.patience = 2;
  std::vector<bool> best;
  const RunResult result = run(task, plan, {.folder = folder, .on_validation = [&](const Progress&, const Validation&, bool better) { best.push_back(better); }});
  EXPECT_EQ(result.end, RunEnd::no_improvement);
  EXPECT_EQ(result.steps, 40);
  EXPECT_EQ(result.best->score, 3);
  EXPECT_EQ(best, (std::vector<bool>{true, true, false, false}));
  EXPECT_NE(saved_weight(folder), task.weight());
}

TEST(Run, AScoreThatIsNotANumberIsNotTheBest) {
  Line task;
  task.scores = {std::numeric_limits<double>::quiet_NaN(), -3, -4, std::numeric_limits<double>::quiet_NaN()};
  EXPECT_EQ(run(task, task.plan(), {.folder = fresh_folder("run_nan")}).best->score, -3);
}

TEST(Run, ResumingNeedsACheckpoint) {
  Line task;
  EXPECT_ERROR(run(task, task.plan(), {.folder = fresh_folder("run_none"), .resume = true}), io, HasSubstr("there is no run to resume"));
}

TEST(Order, EveryExampleComesOnceInAnEpoch) {
  std::multiset<std::int64_t> seen;
  for (std::int64_t number = 1; number <= 7; ++number)
    for (const std::int64_t i : batch_of_step(number, 3, 7, 5)) seen.insert(i);
  for (std::int64_t i = 0; i < 7; ++i) EXPECT_EQ(seen.count(i), 3u) << i;
  EXPECT_NE(batch_of_step(1, 7, 7, 5), batch_of_step(2, 7, 7, 5));
  EXPECT_NE(batch_of_step(1, 7, 7, 5), batch_of_step(1, 7, 7, 6));
}

}  // namespace
}  // namespace polyhead::training
