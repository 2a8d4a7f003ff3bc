#include <array>
#include <atomic>
#include <cmath>
#include <csignal>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "command.h"
#include "core/text.h"
#include "format.h"
#include "json.h"
#include "parser.h"
#include "polyhead/executor.h"
#include "terminal.h"
#include "train_heads.h"
#include "train_snapshots.h"
#include "training/classification.h"
#include "training/digits.h"
#include "training/run.h"
#include "training/summary.h"
#include "training/translation.h"

namespace polyhead::app {
namespace {

struct TrainedTask {
  std::string name;
  std::unique_ptr<training::Task> (*make)(const training::TaskOptions&);
};

const std::array kTasks{
    TrainedTask{"classify", training::classification_task},
    TrainedTask{"digits", training::digits_task},
    TrainedTask{"summarise", training::summary_task},
    TrainedTask{"translate", training::translation_task},
};

struct TrainOptions {
  std::string task, data, folder;
  std::uint64_t seed = 1;
  std::optional<std::int64_t> steps, threads, snapshots;
  std::vector<std::string> texts;  // texts whose maps the snapshots show
  std::vector<std::int64_t> numbers;  // digits: numbers of the images whose maps the snapshots show
  bool resume = false, is_short = false, json = false;
};

// Set by the first signal: the run then ends after its current step and writes a checkpoint. A second signal ends the program.
std::atomic<bool> g_stop = false;
void stop(int signal) {
  if (g_stop.exchange(true)) std::signal(signal, SIG_DFL), std::raise(signal);
}

std::string duration(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  const std::string rest = cat(whole % 60);
  return cat(whole / 60, ":", rest.size() < 2 ? "0" : "", rest);
}

std::string speed(const training::Progress& progress) {
  return cat("loss ", fixed(progress.loss, 4), "  ", static_cast<std::int64_t>(progress.tokens_per_second), " tokens/s  ", duration(progress.seconds_left), " left");
}

// Returns nullptr for "heads", the study of the number of heads, which trains several tasks.
const TrainedTask* find_task(const std::string& word) {
  std::vector<std::string> names{"heads"};
  for (const TrainedTask& task : kTasks) names.push_back(task.name);
  const std::string name = read_choice(word, "task", names);
  return name == "heads" ? nullptr : std::ranges::find(kTasks, name, &TrainedTask::name);
}

std::string start_text(training::Task& task, const training::Plan& plan, std::uint64_t seed) {
  std::string text;
  for (const std::string& line : task.description()) append(text, line + "\n");
  std::int64_t parameters = 0;
  for (const auto& [name, tensor] : task.parameters()) parameters += tensor->numel();
  return cat(text, parameters, " parameters, ", counted(plan.steps, "step"), ", seed ", seed, ", ", counted(num_threads(), "thread"), "\n");
}

// UsageError for options of snapshots that would have no effect.
void check_snapshots(const TrainOptions& o, const std::string& task) {
  if (o.snapshots && *o.snapshots < 2) throw UsageError(cat("--snapshots ", *o.snapshots, ": a run needs at least 2, one at its beginning and one at its end"));
  for (const auto& [option, given] : {std::pair("--text", !o.texts.empty()), std::pair("--number", !o.numbers.empty())})
    if (given && !o.snapshots) throw UsageError(cat(option, " chooses what the snapshots show; it needs --snapshots N"));
  if (!o.texts.empty() && task == "digits") throw UsageError("--text: digits reads images; --number N chooses an image of the data");
  if (!o.numbers.empty() && task != "digits") throw UsageError(cat("--number chooses an image of digits; ", task, " reads texts: --text TEXT"));
}

void train(const TrainOptions& o) {
  if (o.threads) set_num_threads(static_cast<int>(*o.threads));
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, stop);
  const TrainedTask* const found = find_task(o.task);
  check_snapshots(o, found == nullptr ? "heads" : found->name);
  if (found == nullptr) return train_heads({.data = o.data, .folder = o.folder, .seed = o.seed, .steps = o.steps, .is_short = o.is_short, .snapshots = o.snapshots, .texts = o.texts, .json = o.json, .stop = &g_stop});
  if (o.is_short) throw UsageError(cat("--short is a short form of the task heads; ", found->name, " has --steps N"));
  const std::unique_ptr<training::Task> task = found->make({.data = o.data, .seed = o.seed, .note = [](const std::string& line) { print_note(line); }});
  training::Plan plan = task->plan();
  if (o.steps) plan.steps = *o.steps;
  const std::string identity = cat(o.task, " of ", o.data, ", seed ", o.seed, ", ", plan.steps, " steps");
  std::optional<Snapshots> snapshots;
  if (o.snapshots) snapshots.emplace(SnapshotOptions{.task = found->name, .count = *o.snapshots, .texts = o.texts, .numbers = o.numbers, .data = o.data, .folder = o.folder, .steps = plan.steps, .identity = identity});
  Progress bar("training", static_cast<std::size_t>(plan.steps));
  const training::RunResult result = training::run(*task, plan, {
      .folder = o.folder,
      .identity = identity,
      .resume = o.resume,
      .stop = &g_stop,
      .on_start = [&] {
        if (!o.json) print(start_text(*task, plan, o.seed));
        snapshots ? snapshots->start(*task, o.resume) : note_earlier_snapshots(o.folder);
      },
      .on_step = [&](const training::Progress& p) {
        if (snapshots)
          if (const auto problem = snapshots->take(p.step, *task)) bar.clear(), print_note(*problem);
        bar.show(static_cast<std::size_t>(p.step), speed(p));
      },
      .on_validation = [&](const training::Progress& p, const training::Validation& v, bool best) {
        bar.clear();
        if (o.json)
          print_json({{"step", p.step}, {"loss", p.loss}, {"score", v.score}, {"validation", v.text}, {"best", best}});
        else
          print(cat("step ", p.step, ": loss ", fixed(p.loss, 4), ", ", v.text, best ? "" : " (not better)", "\n"));
      }});
  bar.clear();
  if (result.end == training::RunEnd::stopped)
    fail(ErrorCode::io, "stopped after step ", result.steps, " of ", plan.steps, "; the same command with --resume goes on from there");
  if (snapshots) snapshots->write_page();
  if (o.json) return;
  if (result.end == training::RunEnd::no_improvement) print(cat("ended after step ", result.steps, ": ", plan.patience, " validations in a row did not improve the score\n"));
  print(cat(o.folder, ": ", result.best->text, "\n"));
}

}  // namespace

Subcommand declare_train(Parser& parser) {
  const auto o = std::make_shared<TrainOptions>();
  parser.add_option("TASK", o->task, "classify, translate, summarise, heads or digits")->required();
  parser.add_option("--data", o->data, "the examples. Without --data, translate learns the sentences of a teaching grammar, and heads studies only that task")->type_name("FILE");
  parser.add_option("-o,--output", o->folder, "folder for the model; for the task heads, folder for the results")->type_name("FOLDER")->required();
  add_value(parser, "--seed", &o->seed, read_seed, "N", "seed of the initialisation, the order of the examples and dropout; default 1");
  add_value(parser, "--steps", &o->steps, read_positive, "N", "number of training steps; default: as the task needs");
  add_value(parser, "--threads", &o->threads, read_positive, "N", "number of threads; default: all processors. Results do not depend on this number");
  add_value(parser, "--snapshots", &o->snapshots, read_positive, "N", "write learning.html into the folder, a page with the attention maps of a few texts or images at N training steps, from the first to the last, and a slider over the steps; heads: a page for each number of heads");
  parser.add_option("--text", o->texts, "a text of the snapshots; may be given several times (default: an example)")->type_name("TEXT");
  add_value(parser, "--number", &o->numbers, read_counts, "N,...", "digits: the images of the snapshots, by their numbers in the data, from 0 (default: the first three images of the validation set)");
  parser.add_flag("--short", o->is_short, "heads: 1, 4 and 16 heads, 3 seeds and 500 steps, in about 5 minutes; with --data in about twice that");
  parser.add_flag("--resume", o->resume, "go on from the folder's checkpoint, with the same bits as an uninterrupted run; the task heads always does");
  parser.add_flag("--json", o->json, "machine-readable, one object on one line for each validation; for the task heads, for each model");
  return {
      .examples = {{"polyhead train classify --data reviews.tsv -o sentiment", "a text's rating or class; one head reads what is positive, another what is negative"},
                   {"polyhead train translate -o grammar --snapshots 20", "the same as the last example; also writes learning.html, which shows how the heads learn"},
                   {"polyhead train digits --data digits.npz -o digits", "a Vision Transformer, in about a minute"},
                   {"polyhead train heads --short -o heads", "compares 1, 4 and 16 heads on translation of the teaching grammar, in about 5 minutes"},
                   {"polyhead train heads --data reviews.tsv -o heads", "compares 1, 2, 4, 8 and 16 heads on this translation and on the reviews: 50 models, in an hour or two on 2 processors"},
                   {"polyhead train summarise --data abstracts.jsonl -o summary", "the sentence that sums up an abstract, in seconds"},
                   {"polyhead train translate -o grammar", "English to French in the sentences of a teaching grammar, with a head that shows where each word comes from"}},
      .notes = "Ctrl-C ends a run after its step and leaves a checkpoint in the folder; --resume goes on from it. Except for the task heads, the folder "
               "always has the model of the best validation so far.\n",
      .run = [o] { train(*o); },
  };
}

}  // namespace polyhead::app
