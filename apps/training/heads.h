// Task 4: how many heads? The same task with different numbers of heads at the same number of parameters, each with several seeds.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>

#include "training/task.h"

namespace polyhead::training {

inline constexpr const char* kHeadsResult = "run.json";  // file in the folder of a run that has ended

struct HeadsRun {
  std::int64_t parameters = 0;
  double score = 0;         // the best score of all validations
  std::string validation;   // the text that describes this validation
  double milliseconds = 0;  // median time of a training step
  double megabytes = 0;     // largest resident memory of the process, in units of 10^6 bytes
};

// Snapshots of the training. The functions are called in a child process, except has_page().
struct HeadsHooks {
  std::string shown{};  // names the snapshots, as in "2 snapshots of 'a text'"; run.json keeps it, and a result with other snapshots is refused
  std::function<void(const Task&, const Plan&, const std::string& identity, bool resume)> on_start{};
  std::function<void(std::int64_t step, const Task&)> on_step{};
  std::function<void(const Plan&, const std::string& identity)> on_end{};  // after run.json is written; if has_page() is false later, called again then
  std::function<bool()> has_page{};
};

// Trains once in a child process, so that its memory can be measured; the caller must not have started threads, because the process forks. Writes the
// result to run.json in the folder and keeps no model. A run with a run.json is not repeated, a stopped run is continued, a result of other steps or data is refused.
// Absent if `stop` was set.
std::optional<HeadsRun> run_with_heads(std::unique_ptr<Task> (*make)(const TaskOptions&), const TaskOptions& options, std::optional<std::int64_t> steps,
                                       const std::filesystem::path& folder, const std::atomic<bool>* stop = nullptr, const HeadsHooks& hooks = {});

}  // namespace polyhead::training
