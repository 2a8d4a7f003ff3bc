#include "core/thread_pool.h"

#include <algorithm>
#include <cfenv>
#include <chrono>
#include <exception>
#include <system_error>

namespace polyhead {
namespace {

using std::chrono::microseconds;

// Waking a sleeping thread takes 5 us on bare metal and 50 us in a virtual machine. An idle worker spins for about 50 us before it sleeps, so it never wastes
// more time than a wake-up costs. A caller waits once per call, for pieces that are already running, so it may spin longer.
constexpr microseconds kWorkerSpin{50};
constexpr microseconds kCallerSpin{200};

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <class Condition>
void spin_until(microseconds limit, Condition condition) {
  const auto end = std::chrono::steady_clock::now() + limit;
  do {
    for (int i = 0; i < 16; ++i) {
      if (condition()) return;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
}

}  // namespace

struct ThreadPool::Job {
  const std::function<void(std::int64_t)>& task;
  const std::int64_t count;
  const int threads;
  std::atomic<std::int64_t> next{0};
  std::atomic<int> helpers{0};  // number of workers inside run(); written under the pool's mutex
  std::atomic<bool> failed{false};
  std::exception_ptr error{};
  std::fenv_t environment{};  // the caller's rounding mode and flush-to-zero; workers use the same settings, so that no result depends on the thread

  bool has_work() const { return next.load(std::memory_order_relaxed) < count; }

  void run() noexcept {
    for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
      try {
        task(i);
      } catch (...) {
        if (!failed.exchange(true)) error = std::current_exception();
        next.store(count, std::memory_order_relaxed);
      }
    }
  }
};

void ThreadPool::run(std::int64_t count, int threads, const std::function<void(std::int64_t)>& task) {
  Job job{.task = task, .count = count, .threads = static_cast<int>(std::min<std::int64_t>(threads, count))};
  std::fegetenv(&job.environment);
  {
    std::unique_lock lock(mutex_);
    if (!stopping_) start_workers(job.threads - 1);
    jobs_.push_back(&job);
    posts_.fetch_add(1, std::memory_order_release);
    const int wakes = std::min(job.threads - 1 - spinning_, asleep_);
    lock.unlock();
    for (int i = 0; i < wakes; ++i) posted_.notify_one();
  }
  job.run();
  spin_until(kCallerSpin, [&] { return job.helpers.load(std::memory_order_acquire) == 0; });
  std::unique_lock lock(mutex_);
  std::erase(jobs_, &job);
  helped_.wait(lock, [&] { return job.helpers.load(std::memory_order_relaxed) == 0; });
  lock.unlock();
  if (job.error) std::rethrow_exception(job.error);
}

void ThreadPool::start_workers(int count) {
  try {
    while (static_cast<int>(workers_.size()) < count) workers_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {
    // The system refuses another thread: continue with the workers that have started.
  }
}

void ThreadPool::work() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    Job* job = find_job();
    if (job == nullptr) {
      wait_for_job(lock);
      continue;
    }
    ++busy_;
    ++job->helpers;
    lock.unlock();
    std::fesetenv(&job->environment);
    job->run();
    lock.lock();
    --busy_;
    if (--job->helpers == 0) helped_.notify_all();
  }
}

// Returns the newest job that needs a worker. The newest job comes first because it may be a nested call, for which an older job waits.
ThreadPool::Job* ThreadPool::find_job() {
  for (auto job = jobs_.rbegin(); job != jobs_.rend(); ++job) {
    if ((*job)->has_work() && busy_ < (*job)->threads - 1) return *job;
  }
  return nullptr;
}

void ThreadPool::wait_for_job(std::unique_lock<std::mutex>& lock) {
  const std::uint32_t seen = posts_.load(std::memory_order_relaxed);
  const auto posted = [&] { return posts_.load(std::memory_order_acquire) != seen; };
  ++spinning_;
  lock.unlock();
  spin_until(kWorkerSpin, posted);
  lock.lock();
  --spinning_;
  ++asleep_;
  posted_.wait(lock, [&] { return stopping_ || posted(); });
  --asleep_;
}

void ThreadPool::stop() {
  std::vector<std::thread> workers;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    workers.swap(workers_);
  }
  posted_.notify_all();
  for (std::thread& worker : workers) {
    // If a task ends the process, this code runs on the worker of that task, and a thread cannot join itself.
    worker.get_id() == std::this_thread::get_id() ? worker.detach() : worker.join();
  }
}

}  // namespace polyhead
