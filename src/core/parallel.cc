#include "core/parallel.h"

#ifdef __linux__
#include <sched.h>
#endif

#include <algorithm>
#include <atomic>
#include <vector>

#include "core/interrupt.h"
#include "core/machine.h"
#include "core/process_pool.h"
#include "core/quiet_arithmetic.h"
#include "core/text.h"

namespace polyhead {
namespace {

// There are more pieces than threads. A thread whose pieces take less time (those of the short rows of a causal mask) can then take more pieces.
constexpr int kPiecesPerThread = 4;

std::atomic<int> requested_threads{0};
std::atomic<const DescribedMachine*> described{nullptr};

void require_positive(int count, const char* operation) {
  require(count >= 1, operation, ": the number of threads is ", count, "; it must be at least 1");
}

}  // namespace

void internal::describe_machine(const DescribedMachine* machine) { described.store(machine, std::memory_order_release); }
const DescribedMachine* internal::described_machine() { return described.load(std::memory_order_acquire); }

int internal::usable_processors() {
  if (const DescribedMachine* machine = described_machine()) return machine->processors;
#ifdef __linux__
  // Read the affinity mask, because a container or taskset may allow the process fewer processors than hardware_concurrency() returns.
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return hardware_threads();
}

int num_threads() {
  const int requested = requested_threads.load(std::memory_order_relaxed);
  if (requested > 0) return requested;
  if (described_machine() != nullptr) return usable_processors();
  static const int available = usable_processors();
  return available;
}

void set_num_threads(int count) {
  require_positive(count, "set_num_threads");
  requested_threads.store(count, std::memory_order_relaxed);
}

LimitedThreads::LimitedThreads(int count) : count_(count) { require_positive(count, "LimitedThreads"); }

void LimitedThreads::run(std::int64_t count, const std::function<void(std::int64_t)>& task) {
  if (!pool_has_ended()) return run_in_pool(count, count_, task);
  for (std::int64_t i = 0; i < count; ++i) task(i);
}

double internal::longest_thread(std::span<const double> costs, int threads) {
  std::vector<double> ends(static_cast<std::size_t>(threads), 0);  // heap of the times at which the threads end; the smallest is on top
  for (const double cost : costs) {
    std::pop_heap(ends.begin(), ends.end(), std::greater<>());
    ends.back() += cost;
    std::push_heap(ends.begin(), ends.end(), std::greater<>());
  }
  return *std::max_element(ends.begin(), ends.end());
}

int internal::threads_of(const Executor* executor, const char* operation) {
  constexpr int kMost = 4096;
  const int count = executor != nullptr ? executor->num_threads() : num_threads();
  require(count >= 1, operation != nullptr ? operation : "", operation != nullptr ? ": " : "", "num_threads() of the executor is ", count, "; it must be at least 1");
  return std::min(count, kMost);
}

namespace {

std::int64_t pieces_of(std::int64_t count, std::int64_t grain, int threads) {
  const std::int64_t most = threads > 1 ? std::int64_t{threads} * kPiecesPerThread : 1;
  return std::clamp<std::int64_t>(count / std::max<std::int64_t>(grain, 1), 1, most);
}

void run_pieces(std::int64_t count, Executor* executor, const std::function<void(std::int64_t)>& task) {
  if (count <= 1 || (executor == nullptr && pool_has_ended())) {
    const QuietArithmetic quiet;
    for (std::int64_t piece = 0; piece < count; ++piece) task(piece);
    return;
  }
  InterruptWatch* const watch = current_watch();
  const auto each = [&](std::int64_t piece) {
    const QuietArithmetic quiet;
    // Replaces the watch that the executor's thread may have from another caller, even by no watch. Otherwise this task could end that caller's operation.
    const WatchedTask watched(watch);
    if (watch != nullptr) check_interrupt();
    task(piece);
  };
  executor != nullptr ? executor->run(count, each) : run_in_pool(count, num_threads(), each);
}

// Calls body(first, last). If the operation has an InterruptWatch, the range is cut into shorter ranges with a check for an interrupt before each: the first has
// `grain` indices, and each later one takes about kPart nanoseconds.
void run_piece(std::int64_t first, std::int64_t last, std::int64_t grain, const std::function<void(std::int64_t first, std::int64_t last)>& body) {
  // Nanoseconds. Long compared with a memory allocation, because each call of `body` may allocate memory.
  constexpr std::int64_t kPart = 100'000'000;
  if (current_watch() == nullptr) return body(first, last);
  for (std::int64_t size = std::max<std::int64_t>(grain, 1); first < last;) {
    check_interrupt();
    const std::int64_t end = first + std::min(size, last - first), begin = coarse_nanoseconds();
    body(first, end);
    first = end;
    const std::int64_t times = kPart / std::max(coarse_nanoseconds() - begin, kPart / 8);
    if (times > 1) size = size < (last - first) / times ? size * times : last - first;
  }
}

}  // namespace

std::int64_t internal::longest_share(std::int64_t count, std::int64_t grain, int threads) {
  if (count <= 0) return 0;
  const std::int64_t pieces = pieces_of(count, grain, threads), size = count / pieces;
  std::vector<double> costs(static_cast<std::size_t>(pieces), static_cast<double>(size));
  for (std::int64_t piece = 0; piece < count % pieces; ++piece) ++costs[static_cast<std::size_t>(piece)];
  return static_cast<std::int64_t>(longest_thread(costs, threads));
}

void internal::parallel_for(std::int64_t count, std::int64_t grain, Executor* executor,
                          const std::function<void(std::int64_t first, std::int64_t last)>& body) {
  if (count <= 0) return;
  const std::int64_t pieces = pieces_of(count, grain, threads_of(executor));
  if (pieces == 1) {
    const QuietArithmetic quiet;
    return run_piece(0, count, grain, body);
  }
  // The first (count % pieces) pieces have `size` + 1 indices, all other pieces have `size`.
  const std::int64_t size = count / pieces, longer = count % pieces;
  run_pieces(pieces, executor, [&](std::int64_t piece) {
    const std::int64_t first = piece * size + std::min(piece, longer);
    run_piece(first, first + size + (piece < longer ? 1 : 0), grain, body);
  });
}

void internal::parallel_pieces(std::span<const std::int64_t> bounds, Executor* executor,
                               const std::function<void(std::int64_t first, std::int64_t last)>& body) {
  (void)threads_of(executor);  // throws if the executor has less than one thread, even for problems that need no threads
  const auto piece = [&](std::int64_t i) { body(bounds[static_cast<std::size_t>(i)], bounds[static_cast<std::size_t>(i) + 1]); };
  run_pieces(static_cast<std::int64_t>(bounds.size()) - 1, executor, piece);
}

}  // namespace polyhead
