#include "core/interrupt.h"

#include <time.h>

#include <chrono>

namespace polyhead {
namespace {

constexpr std::int64_t kPeriod = 200'000'000;  // nanoseconds between two calls of wanted(), which may wait for Python's global lock

thread_local constinit InterruptWatch* watch_of_thread = nullptr;
thread_local constinit bool thread_asks = false;  // true: this thread made the watch and calls wanted(); other threads only read its answer

}  // namespace

const char* Interrupted::what() const noexcept { return "the operation was interrupted"; }

std::int64_t internal::coarse_nanoseconds() {
#ifdef CLOCK_MONOTONIC_COARSE
  timespec now{};
  if (clock_gettime(CLOCK_MONOTONIC_COARSE, &now) == 0) return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
#endif
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

InterruptWatch::InterruptWatch() : next_(coarse_nanoseconds() + kPeriod), outer_(watch_of_thread), outer_asks_(thread_asks) {
  watch_of_thread = this, thread_asks = true;
}

InterruptWatch::~InterruptWatch() { watch_of_thread = outer_, thread_asks = outer_asks_; }

bool InterruptWatch::ask() {
  if (coarse_nanoseconds() < next_) return false;
  const bool stop = wanted();
  next_ = coarse_nanoseconds() + kPeriod;
  if (stop) stopped_.store(true, std::memory_order_relaxed);
  return stop;
}

bool internal::interrupted() {
  InterruptWatch* const watch = watch_of_thread;
  return watch != nullptr && (watch->stopped_.load(std::memory_order_relaxed) || (thread_asks && watch->ask()));
}

void internal::check_interrupt() {
  if (interrupted()) throw Interrupted();
}

InterruptWatch* internal::current_watch() { return watch_of_thread; }

WatchedTask::WatchedTask(InterruptWatch* watch) : outer_(watch_of_thread), outer_asks_(thread_asks) {
  if (watch == outer_) return;  // the watch stays the same, and so does thread_asks
  watch_of_thread = watch, thread_asks = false;
}

WatchedTask::~WatchedTask() { watch_of_thread = outer_, thread_asks = outer_asks_; }

}  // namespace polyhead
