// Measures the cost of a parallel region on small problems, with the library's threads, oneTBB, OpenMP, and new std::threads for each call.
// The figures are in docs/decisions/0002-threads.md. `--benchmark_filter=fork` shows which of these four still work in a forked child.
#include <benchmark/benchmark.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "core/parallel.h"
#ifdef HAVE_TBB
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#endif

namespace {

constexpr int kPieces = 2;
using Task = std::function<void(std::int64_t)>;
using Region = void (*)(const Task&);  // a function that runs the task for 0 .. kPieces - 1 in parallel

void serial(const Task& task) {
  for (std::int64_t i = 0; i < kPieces; ++i) task(i);
}

void polyhead_pool(const Task& task) {
  polyhead::parallel_for(kPieces, 1, nullptr, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) task(i);
  });
}

void thread_per_call(const Task& task) {
  std::thread other(task, 1);
  task(0);
  other.join();
}

#ifdef _OPENMP
void openmp(const Task& task) {
#pragma omp parallel for num_threads(kPieces) schedule(static)
  for (std::int64_t i = 0; i < kPieces; ++i) task(i);
}
#endif

#ifdef HAVE_TBB
template <class Partitioner>
void tbb_region(const Task& task) {
  static tbb::task_arena arena(kPieces);
  arena.execute([&] { tbb::parallel_for(std::int64_t{0}, std::int64_t{kPieces}, std::int64_t{1}, task, Partitioner{}); });
}
void tbb_static(const Task& task) { tbb_region<tbb::static_partitioner>(task); }
void tbb_simple(const Task& task) { tbb_region<tbb::simple_partitioner>(task); }
#endif

// Computes multiplications that depend on each other, so that the time does not depend on memory or on the vector unit.
void work(std::int64_t steps) {
  double x = 1;
  for (std::int64_t i = 0; i < steps; ++i) benchmark::DoNotOptimize(x *= 1.0000001);
}

std::int64_t steps_per_100us() {
  static const std::int64_t steps = [] {
    constexpr std::int64_t kSteps = 100'000;
    std::chrono::duration<double> best(1);
    for (int round = 0; round < 100; ++round) {  // take the fastest round, because it was the least disturbed by other processes
      const auto begin = std::chrono::steady_clock::now();
      work(kSteps);
      best = std::min<std::chrono::duration<double>>(best, std::chrono::steady_clock::now() - begin);
    }
    return static_cast<std::int64_t>(static_cast<double>(kSteps) * 1e-4 / best.count());
  }();
  return steps;
}

void empty(benchmark::State& state, Region region) {
  for (auto _ : state) region([](std::int64_t) {});
}

// Measures a region that begins after a pause of 1 ms, when the worker threads have gone to sleep.
void empty_after_idle(benchmark::State& state, Region region) {
  for (auto _ : state) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const auto begin = std::chrono::steady_clock::now();
    region([](std::int64_t) {});
    state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
}

void split_100us(benchmark::State& state, Region region) {
  const std::int64_t steps = steps_per_100us() / kPieces;
  for (auto _ : state) region([=](std::int64_t) { work(steps); });
}

void split_100us_after_idle(benchmark::State& state, Region region) {
  const std::int64_t steps = steps_per_100us() / kPieces;
  for (auto _ : state) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const auto begin = std::chrono::steady_clock::now();
    region([=](std::int64_t) { work(steps); });
    state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
}

// Alternates 0.1 ms in a region with 0.1 ms on the caller's thread alone, like a layer with serial steps.
void split_100us_then_serial_100us(benchmark::State& state, Region region) {
  const std::int64_t steps = steps_per_100us() / kPieces;
  for (auto _ : state) {
    region([=](std::int64_t) { work(steps); });
    work(steps * kPieces);
  }
}

void nested_100us(benchmark::State& state, Region region) {
  const std::int64_t steps = steps_per_100us() / (kPieces * kPieces);
  for (auto _ : state) region([=](std::int64_t) { region([=](std::int64_t) { work(steps); }); });
}

// Two threads of the program run regions of 0.1 ms at the same time. On two processors 100 us for each would be ideal.
void two_users_100us(benchmark::State& state, Region region) {
  const std::int64_t steps = steps_per_100us() / kPieces;
  for (auto _ : state) region([=](std::int64_t) { work(steps); });
}

// Runs a region and then forks; the child process runs three more regions. hung: number of child processes that had not ended after 2 s.
void fork_after_use(benchmark::State& state, Region region) {
  int hung = 0;
  for (auto _ : state) {
    region([](std::int64_t) { work(1000); });
    const pid_t child = fork();
    if (child == 0) {
      alarm(2);
      for (int i = 0; i < 3; ++i) region([](std::int64_t) { work(1000); });
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    hung += WIFSIGNALED(status) ? 1 : 0;
    if (hung == 10) {
      state.SkipWithError("10 children hung");
      break;
    }
  }
  state.counters["hung"] = hung;
}

void add(const char* name, Region region) {
  const auto named = [&](const char* what) { return std::string(what) + "/" + name; };
  benchmark::RegisterBenchmark(named("empty").c_str(), empty, region)->UseRealTime();
  benchmark::RegisterBenchmark(named("empty_after_idle").c_str(), empty_after_idle, region)->UseManualTime()->Iterations(500);
  benchmark::RegisterBenchmark(named("split_100us").c_str(), split_100us, region)->UseRealTime();
  benchmark::RegisterBenchmark(named("split_100us_after_idle").c_str(), split_100us_after_idle, region)->UseManualTime()->Iterations(500);
  benchmark::RegisterBenchmark(named("split_then_serial").c_str(), split_100us_then_serial_100us, region)->UseRealTime();
  benchmark::RegisterBenchmark(named("nested_100us").c_str(), nested_100us, region)->UseRealTime();
  benchmark::RegisterBenchmark(named("two_users_100us").c_str(), two_users_100us, region)->UseRealTime()->Threads(2);
  benchmark::RegisterBenchmark(named("fork_after_use").c_str(), fork_after_use, region)->UseRealTime()->Iterations(2000);
}

const bool registered = [] {
  polyhead::set_num_threads(kPieces);
  add("serial", serial);
  add("polyhead", polyhead_pool);
#ifdef HAVE_TBB
  add("tbb_static", tbb_static);
  add("tbb_simple", tbb_simple);
#endif
#ifdef _OPENMP
  add("openmp", openmp);
#endif
  add("thread_per_call", thread_per_call);
  return true;
}();

}  // namespace
