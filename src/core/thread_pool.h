// The threads of the library. docs/decisions/0002-threads.md says why the library does not use the threads of OpenMP or oneTBB.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace polyhead {

// Worker threads start on first use. The caller always works too and can finish a call alone, so a call never waits for a free
// worker: nested and concurrent calls cannot deadlock, and together they keep at most the given number of workers busy.
class ThreadPool {
 public:
  ThreadPool() = default;
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool() { stop(); }

  // Calls task(i) once for each i in [0, count), on the caller and at most threads - 1 workers. If a task throws, tasks that have not
  // begun are skipped, and run() rethrows the exception when the running tasks have ended.
  void run(std::int64_t count, int threads, const std::function<void(std::int64_t)>& task);

  // Ends and joins the workers; later calls run on the calling thread only.
  void stop();

 private:
  struct Job;

  void start_workers(int count);
  void work();
  Job* find_job();
  void wait_for_job(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;  // guards the members below, except posts_, which is atomic
  std::condition_variable posted_, helped_;
  std::vector<std::thread> workers_;
  std::vector<Job*> jobs_;  // oldest first; the job of a nested call comes after the job of the outer call
  int busy_ = 0;            // number of workers that work on a job
  int spinning_ = 0, asleep_ = 0;
  bool stopping_ = false;
  std::atomic<std::uint32_t> posts_{0};  // changes when a job is posted; idle workers poll it without the mutex
};

}  // namespace polyhead
