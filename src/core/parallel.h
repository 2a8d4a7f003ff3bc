// The one place that knows how work is spread over threads.
#pragma once

#include <cstdint>
#include <functional>

#include "polyhead/executor.h"

namespace polyhead {

// Calls body(first, last) for disjoint pieces that together cover [0, count), and returns when all are done. Every piece but the last holds at
// least `grain` indices (>= 1), so that a piece is worth the wake-up of a thread (about 50 us of work); one piece runs in the caller. How
// the range is cut depends on the number of threads: pieces write disjoint outputs, and no result may depend on where a piece begins.
// An exception from a piece is rethrown here, after every piece has ended. Calls may nest. executor == nullptr: the library's own threads.
void parallel_for(std::int64_t count, std::int64_t grain, Executor* executor,
                  const std::function<void(std::int64_t first, std::int64_t last)>& body);

}  // namespace polyhead
