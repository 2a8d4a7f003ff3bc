// Executor: the threads that operations run on. The library starts its own threads on first use; a caller may pass an Executor with other threads.
#pragma once

#include <cstdint>
#include <functional>

#pragma GCC visibility push(default)
namespace polyhead {

class Executor {
 public:
  virtual ~Executor() = default;
  virtual int num_threads() const = 0;  // Returns a number >= 1; operations throw an Error if it is smaller.
  // Calls task(i) once for every i in [0, count), in any order and on any thread, and returns when all tasks are done.
  // If tasks throw, one of their exceptions is rethrown to the caller of run().
  virtual void run(std::int64_t count, const std::function<void(std::int64_t)>& task) = 0;
};

// Number of threads that an operation uses without an executor. The default is the number of processors that the process may run on.
int num_threads();
void set_num_threads(int count);  // `count` must be at least 1.

// Limits a call to `count` of the library's own threads: `LimitedThreads one(1); sdpa_forward(tensors, {.executor = &one});`
class LimitedThreads final : public Executor {
 public:
  explicit LimitedThreads(int count);  // `count` must be at least 1.
  int num_threads() const override { return count_; }
  void run(std::int64_t count, const std::function<void(std::int64_t)>& task) override;

 private:
  int count_;
};

}  // namespace polyhead
#pragma GCC visibility pop
