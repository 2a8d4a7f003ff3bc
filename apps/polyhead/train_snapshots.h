// Snapshots of a training run: how the attention maps of a few texts change over the training steps, as one page with a slider.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shown_snapshots.h"
#include "training/task.h"

namespace polyhead::app {

inline constexpr const char* kSnapshotPage = "learning.html";

struct SnapshotOptions {
  std::string task;                     // classify, digits, summarise or translate
  std::int64_t count = 2;               // number of snapshots, at least 2
  std::vector<std::string> texts{};     // empty: an example
  std::vector<std::int64_t> numbers{};  // digits: images of the data; empty: the first images of the validation set
  std::filesystem::path data{}, folder; // of the run
  std::int64_t steps = 0;               // of the run
  bool guided = true;                   // translate: whether the training guides a head
  std::string identity{};               // names the run, as in training::RunOptions
};

class Snapshots {
 public:
  // Error for an image that the data do not have, and for a text to summarise that has fewer than two sentences.
  explicit Snapshots(const SnapshotOptions& options);

  // A new run: removes snapshots of an earlier run, saves the initial model, and removes an earlier page. A resumed run: Error if the snapshots in the folder are not of this run.
  // For both: Error if the model cannot read one of the texts, or if a page has no room for all snapshots.
  void start(const training::Task& task, bool resume);
  // Saves the model if there is a snapshot at this step. Returns why it could not be saved; the training goes on without it.
  std::optional<std::string> take(std::int64_t step, const training::Task& task) const;
  // Computes the maps of all snapshots, writes them to learning.html in the folder, and removes the saved models. A note says which snapshots are missing.
  void write_page();
  // As write_page(), for a run that ended before without its page. Error if the saved models are not of this run.
  void write_late_page();

 private:
  std::filesystem::path place(std::int64_t step) const;
  void require_same_run() const;
  void check_texts() const;
  void save(std::int64_t step, const training::Task& task) const;
  void write_taken();

  std::string identity_;
  std::unique_ptr<ShownSnapshots> shown_;
  std::filesystem::path folder_, snapshots_;  // the model's folder, and in it the folder of the saved models
  std::vector<std::int64_t> steps_;
};

// For a run without --snapshots: notes which files of snapshots the folder has from before.
void note_earlier_snapshots(const std::filesystem::path& folder);

}  // namespace polyhead::app
