#pragma once

#include "polyhead/executor.h"

namespace polyhead::test {

// An executor that claims any number of threads and runs all pieces on the calling thread, the last piece first.
class LastPieceFirst final : public Executor {
 public:
  explicit LastPieceFirst(int threads) : threads_(threads) {}
  int num_threads() const override { return threads_; }
  void run(std::int64_t count, const std::function<void(std::int64_t)>& task) override {
    ++runs;
    pieces += count;
    for (std::int64_t i = count - 1; i >= 0; --i) task(i);
  }
  std::int64_t runs = 0, pieces = 0;  // number of calls of run() so far, and number of pieces computed so far

 private:
  int threads_;
};

}  // namespace polyhead::test
