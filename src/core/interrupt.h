// Lets a caller end an operation that takes seconds: Python looks for Ctrl-C.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>

#include "core/interrupted.h"

#pragma GCC visibility push(default)  // components call these
namespace polyhead::inline internal {

// How an operation ends that is interrupted. Its outputs may be partly written; no thread still works on it.
class Interrupted : public std::exception {
 public:
  const char* what() const noexcept override;
};

// Applies to the operations that its thread calls in its lifetime. Between tasks, and between key blocks of backward kernels, that thread calls wanted()
// about every 0.2 s; after the first true, all threads of the operation stop at their next look, and the operation throws Interrupted.
class InterruptWatch {
 public:
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

 protected:
  InterruptWatch();
  virtual ~InterruptWatch();

 private:
  friend bool interrupted();
  virtual bool wanted() = 0;
  bool ask();

  std::atomic<bool> stopped_{false};
  std::int64_t next_;  // nanoseconds of the clock when wanted() is called next
  InterruptWatch* const outer_;
  const bool outer_asks_;
};

// Throws Interrupted if the operation is to end. For loops whose steps take 1 us or more.
void check_interrupt();

}  // namespace polyhead::inline internal
#pragma GCC visibility pop

namespace polyhead::inline internal {

// The watch of the operation that this thread works on; nullptr without one.
InterruptWatch* current_watch();

// A clock for pieces of work: cheap, with steps of some milliseconds.
std::int64_t coarse_nanoseconds();

// For its lifetime this thread works on a task of the operation of `watch`.
class WatchedTask {
 public:
  explicit WatchedTask(InterruptWatch* watch);
  WatchedTask(const WatchedTask&) = delete;
  WatchedTask& operator=(const WatchedTask&) = delete;
  ~WatchedTask();

 private:
  InterruptWatch* const outer_;
  const bool outer_asks_;
};

}  // namespace polyhead::inline internal
