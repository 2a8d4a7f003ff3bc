#include "train_heads.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "core/join.h"
#include "core/text.h"
#include "format.h"
#include "json.h"
#include "terminal.h"
#include "text_layout.h"
#include "train_snapshots.h"
#include "training/classification.h"
#include "training/heads.h"
#include "training/translation.h"

namespace polyhead::app {
namespace {

// What the study trains.
struct Extent {
  std::vector<std::int64_t> heads;
  std::uint64_t seeds;
  std::optional<std::int64_t> steps;  // absent: as the task needs
};
const Extent kLong{.heads = {1, 2, 4, 8, 16}, .seeds = 5, .steps = {}};
const Extent kShort{.heads = {1, 4, 16}, .seeds = 3, .steps = 500};

struct StudiedTask {
  std::string name;
  const char* trained;  // its name in `polyhead train`
  std::unique_ptr<training::Task> (*make)(const training::TaskOptions&);
  std::filesystem::path data;
};

std::string row(const std::array<std::string, 6>& cells) {
  constexpr std::array<std::size_t, 6> kWidths{5, 16, 9, 9, 9, 11};
  std::string text;
  for (std::size_t i = 0; i < cells.size(); ++i) append(text, pad_left(cells[i], kWidths[i]));
  return text + "\n";
}

// The table's line for a number of heads. It summarises the runs with different seeds: mean score, standard deviation, lowest and highest score, fastest
// step and largest memory.
std::string line_of(std::int64_t heads, const std::vector<training::HeadsRun>& runs) {
  const auto count = static_cast<double>(runs.size());
  double sum = 0, squares = 0;
  for (const auto& run : runs) sum += run.score;
  for (const auto& run : runs) squares += std::pow(run.score - sum / count, 2);
  const auto [lowest, highest] = std::ranges::minmax_element(runs, {}, &training::HeadsRun::score);
  const auto fastest = std::ranges::min_element(runs, {}, &training::HeadsRun::milliseconds);
  const auto largest = std::ranges::max_element(runs, {}, &training::HeadsRun::megabytes);
  return row({cat(heads), cat(fixed(sum / count, 4), " +-", fixed(std::sqrt(squares / (count - 1)), 4).substr(1)), fixed(lowest->score, 4), fixed(highest->score, 4),
              fixed(fastest->milliseconds, 2), fixed(largest->megabytes, 0)});
}

// Writes the page of the snapshots of one run.
training::HeadsHooks snapshot_hooks(const HeadsOptions& o, const StudiedTask& task, const std::filesystem::path& folder) {
  const auto snapshots = std::make_shared<std::optional<Snapshots>>();
  const auto begin = [=, count = *o.snapshots, texts = o.texts](const training::Plan& plan, const std::string& identity) {
    snapshots->emplace(SnapshotOptions{.task = task.trained, .count = count, .texts = texts, .folder = folder, .steps = plan.steps, .guided = false, .identity = identity});
  };
  const auto quoted = [](const std::string& name) { return cat("'", name, "'"); };
  return {.shown = cat(*o.snapshots, " snapshots of ", join(show_snapshots(task.trained, o.texts, {}, {})->names(), quoted, ", ")),
          .on_start =
              [=](const training::Task& trained, const training::Plan& plan, const std::string& identity, bool resume) {
                begin(plan, identity);
                (*snapshots)->start(trained, resume);
              },
          .on_step =
              [=](std::int64_t step, const training::Task& trained) {
                if (const auto problem = (*snapshots)->take(step, trained)) print_note(*problem);
              },
          .on_end =
              [=](const training::Plan& plan, const std::string& identity) {
                if (*snapshots) return (*snapshots)->write_page();
                begin(plan, identity);
                (*snapshots)->write_late_page();
              },
          .has_page = [=] { return std::filesystem::is_regular_file(folder / kSnapshotPage); }};
}

}  // namespace

std::string chart(std::span<const HeadScores> rows, std::size_t width) {
  constexpr std::size_t kLabel = 7;  // width of a label such as "   16  "
  const std::size_t columns = std::clamp<std::size_t>(width, kLabel + 14, 80) - kLabel;
  double lowest = std::numeric_limits<double>::infinity(), highest = -lowest;
  for (const HeadScores& row : rows)
    for (const double score : row.scores)
      if (std::isfinite(score)) lowest = std::min(lowest, score), highest = std::max(highest, score);
  if (lowest > highest) return "no model has a score\n";
  const auto column = [&](double score) {
    return highest > lowest ? static_cast<std::size_t>(std::lround((score - lowest) / (highest - lowest) * static_cast<double>(columns - 1))) : columns / 2;
  };
  std::string text = "heads  score: o is one seed, | is the mean\n";
  for (const HeadScores& row : rows) {
    std::string line(columns, ' ');
    double sum = 0, count = 0;
    for (const double score : row.scores) {
      if (!std::isfinite(score)) continue;  // NaN: the correlation is not defined, because all answers are equal
      line[column(score)] = 'o';
      sum += score, ++count;
    }
    if (count > 0) line[column(sum / count)] = '|';
    const std::string heads = cat(row.heads);
    append(text, trimmed(cat(std::string(kLabel - 2 - std::min(kLabel - 2, heads.size()), ' '), heads, "  ", line)) + "\n");
  }
  const std::string left = fixed(lowest, 4), right = fixed(highest, 4);
  return cat(text, std::string(kLabel, ' '), left, std::string(columns > left.size() + right.size() ? columns - left.size() - right.size() : 1, ' '), right, "\n");
}

void train_heads(const HeadsOptions& o) {
  const Extent& extent = o.is_short ? kShort : kLong;
  const std::optional<std::int64_t> steps = o.steps ? o.steps : extent.steps;
  std::vector<StudiedTask> tasks{{"grammar", "translate", training::translation_task, {}}};
  if (!o.data.empty()) tasks.push_back({"sentiment", "classify", training::classification_task, o.data});
  Progress bar("training", tasks.size() * extent.heads.size() * extent.seeds);
  std::size_t done = 0;
  for (const StudiedTask& task : tasks) {
    std::string table = cat(task.name, ", ", extent.seeds, " seeds\n", row({"heads", "score", "lowest", "highest", "ms/step", "memory MB"}));
    std::string meaning;
    std::vector<HeadScores> scores;
    for (const std::int64_t heads : extent.heads) {
      std::vector<training::HeadsRun> runs;
      for (std::uint64_t seed = o.seed; seed < o.seed + extent.seeds; ++seed) {
        const std::string name = cat(task.name, "-", heads, "-", seed);
        bar.show(done++, cat(task.name, ", ", counted(heads, "head"), ", seed ", seed));
        const training::TaskOptions options{.data = task.data, .seed = seed, .heads = heads, .note = [](const std::string& line) { print_note(line); }};
        const bool stopped = o.stop != nullptr && o.stop->load();
        const bool shows = o.snapshots && seed == o.seed;
        if (!shows && !std::filesystem::exists(o.folder / name / training::kHeadsResult)) note_earlier_snapshots(o.folder / name);
        const auto run = stopped ? std::nullopt : training::run_with_heads(task.make, options, steps, o.folder / name, o.stop, shows ? snapshot_hooks(o, task, o.folder / name) : training::HeadsHooks{});
        if (!run) fail(ErrorCode::io, "stopped in ", name, "; the same command goes on from there");
        runs.push_back(*run);
        if (!o.json) continue;
        bar.clear();
        print_json({{"task", task.name}, {"heads", heads}, {"seed", seed}, {"parameters", run->parameters}, {"score", run->score}, {"validation", run->validation},
                    {"ms_per_step", run->milliseconds}, {"megabytes", run->megabytes}});
      }
      append(table, line_of(heads, runs));
      scores.push_back({heads, {}});
      for (const training::HeadsRun& run : runs) scores.back().scores.push_back(run.score);
      meaning = cat("Of the last run: ", runs.back().validation, "; ", runs.back().parameters, " parameters.\n");
    }
    bar.clear();
    if (!o.json) print(cat(table, "\n", chart(scores, terminal_width(Stream::out)), "\n", meaning));
  }
}

}  // namespace polyhead::app
