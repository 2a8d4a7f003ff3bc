// Distributes work over threads. Every operation runs its threads through parallel_for() or parallel_pieces().
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "polyhead/executor.h"

#pragma GCC visibility push(default)  // exported: the libraries of other components call these
namespace polyhead::inline internal {

// Calls body(first, last) for disjoint pieces that together cover [0, count), and returns when all pieces are done. A piece holds at least `grain`
// indices; choose `grain` so that a piece takes kLeastPieceNanoseconds, or waking a thread does not pay. If there is only one piece, it runs in the calling
// thread. How the range is cut depends on the number of threads, so pieces must write disjoint outputs, and no result may depend on where a piece begins.
// Calls may nest. If a piece throws, pieces that have not begun are skipped, and parallel_for rethrows the exception when the running pieces have ended.
// executor == nullptr: the library's own threads.
void parallel_for(std::int64_t count, std::int64_t grain, Executor* executor,
                  const std::function<void(std::int64_t first, std::int64_t last)>& body);

// Returns the number of logical processors that the process may run on, at least 1.
int usable_processors();

}  // namespace polyhead::inline internal
#pragma GCC visibility pop

namespace polyhead::inline internal {

// The shortest piece, in nanoseconds, for which operations wake a thread. A parallel region costs 0.5 us while workers spin and 3 us when they sleep. A
// sleeping worker begins about 35 us late (docs/decisions/0002-threads.md); until then the caller computes pieces, so short pieces cost little.
inline constexpr double kLeastPieceNanoseconds = 10e3;

// Multiply-adds that a kernel does in a nanosecond on one thread with AVX-512, to estimate the time of a piece. Measured: 80 to 120 (docs/experiments.md).
inline constexpr double kMultiplyAddsPerNanosecond = 100;

// Returns the number of threads that operations may use with this executor: 1 to 4096. Error if executor->num_threads() is less than 1; the message begins with
// the name `operation` if it is given. All code reads the number here, so every operation refuses such an executor. With more than 4096 threads, finding a
// schedule would take longer than the schedule saves.
[[gnu::visibility("default")]] int threads_of(const Executor* executor, const char* operation = nullptr);  // exported: the libraries of other components call it

// Does what parallel_for does with pieces that the caller chooses: piece i is [bounds[i], bounds[i + 1]). Threads take the pieces in order.
void parallel_pieces(std::span<const std::int64_t> bounds, Executor* executor,
                     const std::function<void(std::int64_t first, std::int64_t last)>& body);

// Predicts the total cost of the thread that ends last, if `threads` >= 1 equally fast threads take pieces with these costs in order and a thread takes the
// next piece as soon as the thread is free.
double longest_thread(std::span<const double> costs, int threads);

// Predicts the number of indices of the thread that ends last, if parallel_for distributes `count` indices of equal cost.
std::int64_t longest_share(std::int64_t count, std::int64_t grain, int threads);

}  // namespace polyhead::inline internal
