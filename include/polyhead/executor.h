// Threads that operations run on. The library starts its own on first use; a caller may pass an executor instead.
#pragma once

#include <cstdint>
#include <functional>

#pragma GCC visibility push(default)
namespace polyhead {

class Executor {
 public:
  virtual ~Executor() = default;
  virtual int num_threads() const = 0;  // >= 1; operations throw an Error if it is less
  // Calls task(i) once for every i in [0, count), in any order and on any thread, and returns when all are done.
  // An exception thrown by a task is rethrown here (one of them, if several threw).
  virtual void run(std::int64_t count, const std::function<void(std::int64_t)>& task) = 0;
};

// Number of threads of an operation that is given no executor; by default the number of processors that the process may run on.
int num_threads();
void set_num_threads(int count);  // >= 1

// The library's own threads, at most `count` of them for one call: `LimitedThreads one(1); sdpa_forward(tensors, {.executor = &one});`
class LimitedThreads final : public Executor {
 public:
  explicit LimitedThreads(int count);  // >= 1
  int num_threads() const override { return count_; }
  void run(std::int64_t count, const std::function<void(std::int64_t)>& task) override;

 private:
  int count_;
};

}  // namespace polyhead
#pragma GCC visibility pop
