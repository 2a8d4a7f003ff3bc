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
  std::filesystem::path folder;  // folder for the model and the checkpoint; made if missing
  std::string identity;          // text that identifies task, data and seed; a checkpoint with another identity is refused
  bool resume = false;           // true: continue from the folder's checkpoint, Error if there is none; false: Error if there is one
  bool keep_model = true;        // false: no model is saved
  const std::atomic<bool>* stop = nullptr;  // set by a signal handler: the run writes a checkpoint and ends
  std::function<void()> on_start = [] {};  // called after the folder and the checkpoint were checked
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
