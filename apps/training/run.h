// The loop that trains a task. A run that is stopped after any step and resumed from its checkpoint has the same bits as an uninterrupted one.
#pragma once

#include <atomic>
#include <optional>

#include "training/task.h"

namespace polyhead::training {

inline constexpr const char* kCheckpoint = "checkpoint.safetensors";  // this file is in the model's folder until the run is complete

struct Progress {
  std::int64_t step = 0, steps = 0;
  double loss = 0;  // mean loss of the steps since the last report
  double tokens_per_second = 0, seconds_left = 0;
};

struct RunOptions {
  std::filesystem::path folder;  // where the model and the checkpoint are saved; it is made if it does not exist
  // A text that identifies task, data and seed. A run does not resume from a checkpoint with another identity.
  std::string identity;
  // True: continue from the folder's checkpoint; Error if there is none. False: start a new run; Error if there is a checkpoint.
  bool resume = false;
  const std::atomic<bool>* stop = nullptr;  // a signal handler sets it to end the run, which then writes a checkpoint
  std::function<void()> on_start = [] {};  // called once folder and checkpoint are known to be usable
  std::function<void(const Progress&)> on_step = [](const Progress&) {};
  std::function<void(const Progress&, const Validation&, bool best)> on_validation = [](const Progress&, const Validation&, bool) {};
};

enum class RunEnd : std::uint8_t { complete, no_improvement, stopped };

struct RunResult {
  RunEnd end = RunEnd::complete;
  std::int64_t steps = 0;             // number of steps, with those before the run was resumed
  // The best validation; the saved model is the model of this validation. Absent if the run was stopped before the first validation.
  std::optional<Validation> best{};
};

// Trains for plan.steps steps. After each validation, the folder has the model with the best score so far.
RunResult run(Task& task, const Plan& plan, const RunOptions& options);

}  // namespace polyhead::training
