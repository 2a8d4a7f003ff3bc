// Snapshots of a training run: how the attention maps of a few texts change over the training steps, as one page with a slider.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "training/task.h"

namespace polyhead::app {

// UsageError if the task has no snapshots (only classify and translate have), or for fewer than 2.
void check_snapshots(const std::string& task, std::int64_t count);

class Snapshots {
 public:
  // task, count: as check_snapshots() allows. texts: empty for an example.
  Snapshots(const std::string& task, std::int64_t count, std::vector<std::string> texts, std::filesystem::path folder, std::int64_t steps);

  void start(const training::Task& task);                    // a new run: removes snapshots of an earlier run, and saves the initial model. Error if it cannot read one of the texts
  void take(std::int64_t step, const training::Task& task);  // saves the model if there is a snapshot at this step
  // Computes the maps of all snapshots, writes them to learning.html in the folder, and removes the saved models.
  void write_page() const;

 private:
  std::filesystem::path place(std::int64_t step) const;

  std::string task_;
  std::vector<std::string> texts_;
  std::filesystem::path folder_;
  std::vector<std::int64_t> steps_;
};

}  // namespace polyhead::app
