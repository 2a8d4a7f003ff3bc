#include "train_snapshots.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "arguments.h"
#include "core/join.h"
#include "core/text.h"
#include "format.h"
#include "json.h"
#include "polyhead/io/atomic_file.h"
#include "polyhead/viewer.h"
#include "terminal.h"
#include "view_input.h"
#include "view_output.h"

namespace polyhead::app {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFolder = "learning.snapshots";  // folder of the saved models, one for each snapshot; it exists until the run is complete
constexpr const char* kRun = "run.json";               // file in kFolder that says to which run the snapshots belong
constexpr std::string_view kPartial = ".partial";      // suffix of a snapshot that is not completely saved

bool is_snapshot(const fs::directory_entry& entry) {
  if (entry.is_symlink() || !entry.is_directory()) return false;
  std::string name = entry.path().filename().string();
  const bool partial = name.ends_with(kPartial);
  if (partial) name.resize(name.size() - kPartial.size());
  return parse<std::int64_t>(name) && (partial || fs::exists(entry.path() / "config.json"));
}

// Removes the snapshots of an earlier run with their folder. Error, before anything is removed, if the folder holds something that no run writes: it is the user's.
void remove_snapshots(const fs::path& folder) {
  if (!fs::exists(fs::symlink_status(folder))) return;
  std::vector<fs::path> paths;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    paths.push_back(entry.path());
    if (!is_snapshot(entry) && paths.back().filename() != kRun)
      fail(ErrorCode::io, "'", folder.string(), "' has '", paths.back().filename().string(), "', which no run with --snapshots writes; move it away, or give another folder with -o");
  }
  for (const fs::path& path : paths) fs::remove_all(path);
  fs::remove(folder);
}

}  // namespace

Snapshots::Snapshots(const SnapshotOptions& o) : identity_(o.identity), shown_(show_snapshots(o.task, o.texts, o.numbers, o.data, o.guided)), folder_(o.folder), snapshots_(o.folder / kFolder) {
  // Steps are closer together at the beginning, where heads change most: step i of n is at (i / n)^2.
  for (std::int64_t i = 0; i < o.count; ++i) {
    const double part = static_cast<double>(i) / static_cast<double>(o.count - 1);
    const auto step = static_cast<std::int64_t>(static_cast<double>(o.steps) * part * part + 0.5);
    if (steps_.empty() || step > steps_.back()) steps_.push_back(step);
  }
}

fs::path Snapshots::place(std::int64_t step) const { return snapshots_ / cat(step); }

void Snapshots::start(const training::Task& task, bool resume) {
  if (resume) return require_same_run(), check_texts();
  remove_snapshots(snapshots_);
  save(0, task);
  try {
    check_texts();
  } catch (...) {
    remove_snapshots(snapshots_);
    throw;
  }
  if (fs::is_regular_file(folder_ / kSnapshotPage)) fs::remove(folder_ / kSnapshotPage);  // it would pass as the page of this run if this run is stopped
  io::write_file(snapshots_ / kRun, to_text(Json{{"identity", identity_}, {"steps", steps_}}));
}

// A page that mixes the snapshots of two runs, or lacks the first steps of a run, would be wrong.
void Snapshots::require_same_run() const {
  const fs::path path = snapshots_ / kRun;
  std::ifstream file(path);
  if (!file) fail(ErrorCode::io, "--resume: the run in '", folder_.string(), "' was begun without --snapshots, so its first steps have none; resume it without --snapshots");
  const Json run = Json::parse(std::string(std::istreambuf_iterator<char>(file), {}), nullptr, false);
  if (!run.is_object() || !run.contains("identity") || !run["identity"].is_string() || !run.contains("steps")) fail(ErrorCode::format, "'", path.string(), "' is not a file that a run with --snapshots writes");
  if (to_text(run["identity"]) != to_text(identity_)) fail(ErrorCode::invalid_argument, "--resume: '", path.string(), "' is of another run (", run["identity"].get<std::string>(), "); this one is ", identity_);
  if (run["steps"] != Json(steps_)) fail(ErrorCode::invalid_argument, "--resume: the run was begun with another --snapshots, which gives snapshots at the steps ", to_text(run["steps"]), "; this one has ", to_text(steps_));
}

void Snapshots::check_texts() const {
  const std::int64_t weights = shown_->weights(place(0));
  std::int64_t all = 0;
  if (__builtin_mul_overflow(weights, std::ssize(steps_), &all) || all > viewer::kMaxAttentionWeights)
    fail(ErrorCode::invalid_argument, "--snapshots: ", steps_.size(), " snapshots of ", counted(std::ssize(shown_->names()), "text"), " have ", shown_->estimates() ? "about " : "", weights, " attention weights each; a page holds at most ",
         viewer::kMaxAttentionWeights, " in all: give fewer snapshots, or fewer or shorter texts");
}

// Saves under a temporary name and then renames, so that a stopped run leaves no incomplete snapshot.
void Snapshots::save(std::int64_t step, const training::Task& task) const {
  const fs::path partial = snapshots_ / cat(step, kPartial);
  fs::create_directories(partial);
  task.save(partial);
  fs::remove_all(place(step));  // a run that resumes from a checkpoint takes the snapshots after the checkpoint again
  fs::rename(partial, place(step));
}

std::optional<std::string> Snapshots::take(std::int64_t step, const training::Task& task) const {
  if (std::ranges::find(steps_, step) == steps_.end()) return {};
  try {
    save(step, task);
  } catch (const std::runtime_error& error) {  // thrown by the library or by the file system, for example because the disk is full
    return cat("there is no snapshot of step ", step, ": ", error.what());
  }
  return {};
}

void Snapshots::write_page() {
  try {
    write_taken();
  } catch (const Error& error) {
    throw Error(error.code(), cat("the training in '", folder_.string(), "' is complete, but there is no page of its snapshots, which are in '", snapshots_.string(), "': ", error.what()));
  }
  try {
    remove_snapshots(snapshots_);
  } catch (const std::runtime_error& error) {
    print_note(error.what());
  }
}

void Snapshots::write_late_page() {
  if (!fs::exists(snapshots_ / kRun)) fail(ErrorCode::io, "'", folder_.string(), "' has neither ", kSnapshotPage, " nor the snapshots of which to make it; give another folder with -o, or leave out --snapshots");
  require_same_run();
  write_page();
}

void note_earlier_snapshots(const fs::path& folder) {
  for (const char* const name : {kSnapshotPage, kFolder})
    if (fs::exists(fs::symlink_status(folder / name))) print_note(cat("'", (folder / name).string(), "' is from before; this run, without --snapshots, leaves it as it is"));
}

void Snapshots::write_taken() {
  std::vector<std::int64_t> taken;
  std::vector<std::string> missing;
  for (const std::int64_t step : steps_) fs::exists(place(step)) ? taken.push_back(step) : missing.push_back(cat(step));
  if (!missing.empty())
    print_note(cat("the page has ", taken.size(), " of ", steps_.size(), " snapshots; missing: ", missing.size() == 1 ? "step " : "steps ", join(missing, std::identity{}, ", ", 6), ", because the run ended before, or because they were not saved or were removed"));
  if (taken.empty()) return;
  const std::vector<std::string> names = shown_->names();
  viewer::Page page{.title = cat(names[0], names.size() > 1 ? cat(" (+", names.size() - 1, ")") : "")};
  shown_->begin(place(taken.back()));
  for (const std::int64_t step : taken) shown_->add(page, step, place(step));
  page.model = cat(model_name(folder_), ": ", page.model);
  const fs::path path = folder_ / kSnapshotPage;
  write_html(path.string(), viewer::render(page), cat(counted(static_cast<std::int64_t>(taken.size()), "snapshot"), " of ", counted(static_cast<std::int64_t>(names.size()), page.texts[0].image ? "image" : "text")));
}

}  // namespace polyhead::app
