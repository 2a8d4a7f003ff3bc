#include "core/parallel.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "polyhead/error.h"

namespace polyhead {
namespace {

std::atomic<int> requested_threads{0};

}  // namespace

int num_threads() {
  const int requested = requested_threads.load(std::memory_order_relaxed);
  return requested > 0 ? requested : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void set_num_threads(int count) {
  if (count < 1) {
    throw Error(ErrorCode::invalid_argument, "set_num_threads: count is " + std::to_string(count) + "; it must be at least 1");
  }
  requested_threads.store(count, std::memory_order_relaxed);
}

void parallel_for(std::int64_t count, std::int64_t grain, Executor* executor,
                  const std::function<void(std::int64_t first, std::int64_t last)>& body) {
  if (count <= 0) return;
  grain = std::max<std::int64_t>(grain, 1);
  const int threads = executor ? executor->num_threads() : 1;
  const std::int64_t pieces = std::min<std::int64_t>(std::max<std::int64_t>(count / grain, 1), threads);
  if (pieces <= 1) return body(0, count);
  executor->run(pieces, [&](std::int64_t piece) { body(count * piece / pieces, count * (piece + 1) / pieces); });
}

}  // namespace polyhead
