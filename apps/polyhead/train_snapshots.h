// Snapshots of a training run: how the attention maps of a few texts change over the training steps, as one page with a slider.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "training/task.h"

namespace polyhead::app {

// Throws a UsageError if `task` is neither classify nor translate, which alone have snapshots, or if `count` is less than 2.
void check_snapshots(const std::string& task, std::int64_t count);

class Snapshots {
 public:
  // Pass a task and a count that check_snapshots() accepts. If texts is empty, an example text is used. identity names the run, as in training::RunOptions.
  Snapshots(const std::string& task, std::int64_t count, std::vector<std::string> texts, const std::filesystem::path& folder, std::int64_t steps, std::string identity);

  // A new run: removes snapshots of an earlier run, and saves the initial model. A resumed run: Error if the snapshots in the folder are not of this run.
  // For both: Error if the model cannot read one of the texts, or if a page has no room for all snapshots.
  void start(const training::Task& task, bool resume);
  // Saves the model if there is a snapshot at this step. Returns why it could not be saved; the training goes on without it.
  std::optional<std::string> take(std::int64_t step, const training::Task& task) const;
  // Computes the maps of all snapshots, writes them to learning.html in the folder, and removes the saved models. A note says which snapshots are missing.
  void write_page() const;

 private:
  std::filesystem::path place(std::int64_t step) const;
  void require_same_run() const;
  void check_texts() const;
  void save(std::int64_t step, const training::Task& task) const;
  void write_taken() const;

  std::string task_, identity_;
  std::vector<std::string> texts_;
  // folder_: the folder of the model. snapshots_: the folder in it that holds the saved models.
  std::filesystem::path folder_, snapshots_;
  std::vector<std::int64_t> steps_;
};

}  // namespace polyhead::app
