#include "training/heads.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/text.h"
#include "polyhead/io/atomic_file.h"
#include "training/run.h"

namespace polyhead::training {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kStopped = 3;  // exit status of a process whose run was stopped

std::string identity_of(const TaskOptions& options, std::optional<std::int64_t> steps) {
  const std::string data = options.data.empty() ? "no data" : options.data.string();
  return cat(data, ", ", options.heads.value(), " heads, seed ", options.seed, ", ", steps ? cat(*steps) : "all", " steps");
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

// The work of the child process. Returns its exit status.
int train(Task& task, const Plan& plan, const std::string& identity, const std::filesystem::path& folder, const std::atomic<bool>* stop, const HeadsHooks& hooks) {
  std::vector<double> milliseconds;
  Clock::time_point before = Clock::now();
  const bool resume = std::filesystem::exists(folder / kCheckpoint);
  const RunResult result = run(task, plan, {.folder = folder,
                                            .identity = identity,
                                            .resume = resume,
                                            .keep_model = false,
                                            .stop = stop,
                                            .on_start = [&] {
                                              if (hooks.on_start) hooks.on_start(task, plan, identity, resume);
                                              before = Clock::now();
                                            },
                                            .on_step = [&](const Progress& progress) {
                                              milliseconds.push_back(std::chrono::duration<double, std::milli>(Clock::now() - before).count());
                                              if (hooks.on_step) hooks.on_step(progress.step, task);
                                              before = Clock::now();
                                            }});
  if (result.end == RunEnd::stopped) return kStopped;
  std::int64_t parameters = 0;
  for (const auto& [name, tensor] : task.parameters()) parameters += tensor->numel();
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  nlohmann::ordered_json json{{"identity", identity}, {"parameters", parameters}, {"score", result.best->score}, {"validation", result.best->text},
                      {"milliseconds", median(std::move(milliseconds))}, {"megabytes", static_cast<double>(usage.ru_maxrss) * 1024 / 1e6}};
  if (!hooks.shown.empty()) json["snapshots"] = hooks.shown;
  io::write_file(folder / kHeadsResult, json.dump(2) + "\n");  // before on_end(), which may fail
  if (hooks.on_end) hooks.on_end(plan, identity);
  return 0;
}

// Runs `work` in a child process and returns its exit status: 1 after an exception, which note() reports. If `stop` is set, the child is stopped too.
int status_of_process(const std::function<int()>& work, const std::function<void(const std::string&)>& note, const std::atomic<bool>* stop) {
  // True if `stop` is set before the fork: then the child, which has a copy of `stop`, needs no signal.
  bool told = stop != nullptr && stop->load();
  // Ctrl-C sends SIGINT to both processes, but only the parent shall stop the child. So block SIGINT until the child ignores it.
  sigset_t interrupt, before;
  sigemptyset(&interrupt), sigaddset(&interrupt, SIGINT);
  pthread_sigmask(SIG_BLOCK, &interrupt, &before);
  const pid_t process = fork();
  if (process == 0) std::signal(SIGINT, SIG_IGN);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (process < 0) throw std::system_error(errno, std::generic_category(), "cannot start a process");
  if (process == 0) {
    int status = 1;
    try {
      status = work();
    } catch (const std::exception& error) {
      note(error.what());
    }
    std::_Exit(status);
  }
  int status = 0;
  while (waitpid(process, &status, WNOHANG) == 0) {
    if (stop != nullptr && stop->load() && !std::exchange(told, true)) kill(process, SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

// Reads a run.json. Error if it is of another run, or has other snapshots than `shown`.
HeadsRun read_result(const std::filesystem::path& file, const std::string& identity, const std::string& shown) {
  std::ifstream in(file);
  const auto json = nlohmann::json::parse(in, nullptr, false);
  try {
    if (json.at("identity") != identity) fail(ErrorCode::format, file.string(), " is of another run (", json.at("identity").get<std::string>(), "); this one is ", identity);
    const std::string before = json.value("snapshots", "");
    if (!shown.empty() && before.empty()) fail(ErrorCode::io, "the run of ", file.string(), " ended without --snapshots; give another folder with -o, or leave out --snapshots");
    if (!shown.empty() && before != shown) fail(ErrorCode::io, "the run of ", file.string(), " ended with ", before, "; this one has ", shown, "; give another folder with -o, or leave out --snapshots");
    return HeadsRun{json.at("parameters"), json.at("score"), json.at("validation"), json.at("milliseconds"), json.at("megabytes")};
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorCode::format, file.string(), " is not a result: ", error.what());
  }
}

}  // namespace

std::optional<HeadsRun> run_with_heads(std::unique_ptr<Task> (*make)(const TaskOptions&), const TaskOptions& options, std::optional<std::int64_t> steps,
                                       const std::filesystem::path& folder, const std::atomic<bool>* stop, const HeadsHooks& hooks) {
  const std::string identity = identity_of(options, steps);
  const std::filesystem::path file = folder / kHeadsResult;
  const bool trained = std::filesystem::exists(file);
  if (trained) {
    const HeadsRun result = read_result(file, identity, hooks.shown);
    if (!hooks.has_page || hooks.has_page()) return result;
  }
  const int status = status_of_process([&] {
    const std::unique_ptr<Task> task = make(options);
    Plan plan = task->plan();
    plan.steps = steps.value_or(plan.steps);
    if (!trained) return train(*task, plan, identity, folder, stop, hooks);
    hooks.on_end(plan, identity);
    return 0;
  }, options.note, stop);
  if (status == kStopped) return std::nullopt;
  if (status != 0 && std::filesystem::exists(file)) fail(ErrorCode::io, "the training for ", folder.string(), " is complete, but it has no page; the same command tries only to write the page");
  if (status != 0) fail(ErrorCode::io, "the training for ", folder.string(), " ended early");
  return read_result(file, identity, hooks.shown);
}

}  // namespace polyhead::training
