// Task 4: how many heads? The same task with different numbers of heads at the same number of parameters, each with several seeds.
#pragma once

#include <atomic>
#include <optional>

#include "training/task.h"

namespace polyhead::training {

struct HeadsRun {
  std::int64_t parameters = 0;
  double score = 0;         // the best score of all validations
  std::string validation;   // the text that describes this validation
  double milliseconds = 0;  // median time of a training step
  double megabytes = 0;     // largest resident memory of the process, in units of 10^6 bytes
};

// Trains once, in a child process, so that the memory of this training alone can be measured. The process forks, so the caller must not have started threads.
// Writes the result to run.json in the folder and keeps no model. If the folder has a run.json, nothing is trained again; a stopped run is continued; a result
// of other steps or data is an Error. Returns nullopt if `stop` was set.
std::optional<HeadsRun> run_with_heads(std::unique_ptr<Task> (*make)(const TaskOptions&), const TaskOptions& options, std::optional<std::int64_t> steps,
                                       const std::filesystem::path& folder, const std::atomic<bool>* stop = nullptr);

}  // namespace polyhead::training
