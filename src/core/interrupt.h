// Lets a caller end an operation that takes seconds. The Python package uses it to end an operation on Ctrl-C.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>

#include "core/interrupted.h"

#pragma GCC visibility push(default)  // exported: the libraries of other components call these
namespace polyhead::inline internal {

// Thrown by an interrupted operation. The outputs of the operation may be partly written; no thread writes to them any more.
class Interrupted : public std::exception {
 public:
  const char* what() const noexcept override;
};

// While an InterruptWatch exists, it can end the operations that its thread calls. The thread calls wanted() about every 0.2 s, between tasks and between the
// key blocks of kernels of derivatives. When wanted() has returned true, all threads of the operation stop at their next check, and the operation throws
// Interrupted.
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
  std::int64_t next_;  // time of the next call of wanted(), in nanoseconds of the coarse clock
  InterruptWatch* const outer_;
  const bool outer_asks_;
};

// Throws Interrupted if the InterruptWatch of the operation requests its end. Call it in loops whose steps take 1 us or more.
void check_interrupt();

}  // namespace polyhead::inline internal
#pragma GCC visibility pop

namespace polyhead::inline internal {

// Returns the InterruptWatch of the operation that this thread works on, or nullptr if the operation has none.
InterruptWatch* current_watch();

// Returns the time of a clock that is cheap to read and has a resolution of some milliseconds.
std::int64_t coarse_nanoseconds();

// While a WatchedTask exists, its thread works on a task of the operation that `watch` belongs to.
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
