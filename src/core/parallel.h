// Distributes work over threads; every operation uses this function.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "polyhead/executor.h"

#pragma GCC visibility push(default)  // exported: the libraries of other components call these
namespace polyhead::inline internal {

// Calls body(first, last) for disjoint pieces that together cover [0, count), and returns when all are done. A piece holds at least `grain`
// indices, which should be worth the wake-up of a thread (kLeastPieceNanoseconds); one piece runs in the caller. How the range is cut depends
// on the number of threads: pieces write disjoint outputs, and no result may depend on where a piece begins. Calls may nest.
// If a piece throws, pieces that have not begun are skipped and the exception is rethrown here when the running ones have ended.
// executor == nullptr: the library's own threads.
void parallel_for(std::int64_t count, std::int64_t grain, Executor* executor,
                  const std::function<void(std::int64_t first, std::int64_t last)>& body);

// Logical processors that the process may run on; at least 1.
int usable_processors();

}  // namespace polyhead::inline internal
#pragma GCC visibility pop

namespace polyhead::inline internal {

// Least nanoseconds of a piece that is worth waking a thread, for every operation. A region costs 0.5 us while workers spin and 3 us when
// they sleep, and a sleeping worker begins about 35 us late (docs/decisions/0002-threads.md); until then the caller takes pieces, so short
// pieces cost little even then.
inline constexpr double kLeastPieceNanoseconds = 10e3;

// Multiply-adds of a kernel in a nanosecond, on one thread with AVX-512: 80 to 120 (docs/experiments.md).
inline constexpr double kMultiplyAddsPerNanosecond = 100;

// Number of threads that operations may use with this executor: 1 to 4096. The only place that reads the number of an executor, so that
// all operations refuse one of less than 1; the message begins with the operation, if it is given. Schedules of more threads than 4096
// would take longer to find than they save.
[[gnu::visibility("default")]] int threads_of(const Executor* executor, const char* operation = nullptr);  // components call it

// As parallel_for, with pieces given by the caller: piece i is [bounds[i], bounds[i + 1]). Threads take them in order.
void parallel_pieces(std::span<const std::int64_t> bounds, Executor* executor,
                     const std::function<void(std::int64_t first, std::int64_t last)>& body);

// Predicts the cost of the thread that ends last, if `threads` >= 1 equally fast threads take pieces with these costs in order, each thread as soon
// as it is free.
double longest_thread(std::span<const double> costs, int threads);

// Predicts the number of indices of the thread that ends last, if parallel_for distributes `count` indices of equal cost.
std::int64_t longest_share(std::int64_t count, std::int64_t grain, int threads);

}  // namespace polyhead::inline internal
