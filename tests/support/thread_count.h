#pragma once

#include "polyhead/executor.h"

namespace polyhead::test {

// Sets the library's number of threads, if a count is given. The destructor restores the old number.
class ThreadCount {
 public:
  ThreadCount() = default;
  explicit ThreadCount(int count) { set_num_threads(count); }
  ~ThreadCount() { set_num_threads(before_); }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int before_ = num_threads();
};

}  // namespace polyhead::test
