#pragma once

#include "polyhead/executor.h"

namespace polyhead::test {

// As many threads as a test wants, all of them the caller, who takes the last piece first.
class LastPieceFirst final : public Executor {
 public:
  explicit LastPieceFirst(int threads) : threads_(threads) {}
  int num_threads() const override { return threads_; }
  void run(std::int64_t count, const std::function<void(std::int64_t)>& task) override {
    for (std::int64_t i = count - 1; i >= 0; --i) task(i);
  }

 private:
  int threads_;
};

}  // namespace polyhead::test
