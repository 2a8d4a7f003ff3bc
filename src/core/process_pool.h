// The threads that all calls without an executor share. The functions are in process_pool.cc or, in a build with POLYHEAD_THREADS=OFF, in one_thread.cc.
#pragma once

#include <cstdint>
#include <functional>

namespace polyhead::inline internal {

// Returns the number of processors of the machine, at least 1.
int hardware_threads();
// Calls task(i) once for each i in [0, count), on at most `threads` threads. Exceptions are handled as in ThreadPool::run.
void run_in_pool(std::int64_t count, int threads, const std::function<void(std::int64_t)>& task);
// Returns true when the process is ending and its workers have already been joined.
bool pool_has_ended();

}  // namespace polyhead::inline internal
