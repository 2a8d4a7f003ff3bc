// The one place that knows how work is spread over threads.
#pragma once

#include <cstdint>
#include <functional>

#include "polyhead/executor.h"

namespace polyhead {

// Calls body(first, last) for disjoint pieces that together cover [0, count), and returns when all are done. A piece holds at least `grain`
// indices, which should be worth the wake-up of a thread (about 50 us of work); one piece runs in the caller. How the range is cut depends
// on the number of threads: pieces write disjoint outputs, and no result may depend on where a piece begins. Calls may nest.
// An exception from a piece is rethrown here when no piece runs any more; pieces that have not begun are left out.
// executor == nullptr: the library's own threads.
void parallel_for(std::int64_t count, std::int64_t grain, Executor* executor,
                  const std::function<void(std::int64_t first, std::int64_t last)>& body);

// How many threads that may use; at least 1.
inline int threads_of(const Executor* executor) { return executor != nullptr ? executor->num_threads() : num_threads(); }

// Logical processors that the process may run on; at least 1.
int usable_processors();

}  // namespace polyhead
