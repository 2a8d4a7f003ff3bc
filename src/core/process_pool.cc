#include "core/process_pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>

#include "core/thread_pool.h"

namespace polyhead {
namespace {

std::atomic<bool> ending{false};

// The pool is never deleted, because another thread may still be inside a call when the process ends.
std::atomic<ThreadPool*> pool{nullptr};
ThreadPool* abandoned = nullptr;  // in a forked child: the pool of the parent, to which this pointer refers so that leak checkers do not report it

struct PoolLifetime {
  PoolLifetime() {
    // A forked child starts with a new pool: the old pool has no workers in the child, and its lock may be held by a thread that exists only in the parent.
    pthread_atfork(nullptr, nullptr, [] {
      if (ThreadPool* old = pool.exchange(nullptr)) abandoned = old;
    });
  }
  ~PoolLifetime() {
    ending = true;
    if (ThreadPool* current = pool.load()) current->stop();
  }
} pool_lifetime;

ThreadPool& the_pool() {
  ThreadPool* current = pool.load(std::memory_order_acquire);
  if (current != nullptr) return *current;
  auto made = std::make_unique<ThreadPool>();
  return pool.compare_exchange_strong(current, made.get(), std::memory_order_acq_rel) ? *made.release() : *current;
}

}  // namespace

int internal::hardware_threads() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

void internal::run_in_pool(std::int64_t count, int threads, const std::function<void(std::int64_t)>& task) { the_pool().run(count, threads, task); }

bool internal::pool_has_ended() { return ending; }

}  // namespace polyhead
