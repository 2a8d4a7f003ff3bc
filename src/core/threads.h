// The types of locks and threads that the library uses. In a build with POLYHEAD_THREADS=OFF (WebAssembly) there is one thread, and the locks do nothing.
#pragma once

#ifdef POLYHEAD_NO_THREADS
#include <mutex>  // std::try_to_lock
#else
#include <mutex>
#include <thread>
#endif

namespace polyhead::inline internal {

#ifdef POLYHEAD_NO_THREADS
struct Mutex {};
class Lock {
 public:
  explicit Lock(Mutex&) {}
  Lock(Mutex&, std::try_to_lock_t) {}
  bool try_lock() { return true; }
  explicit operator bool() const { return true; }
};
using ThreadId = int;
inline ThreadId this_thread() { return 0; }
inline void yield_thread() {}
#else
using Mutex = std::mutex;
using Lock = std::unique_lock<std::mutex>;
using ThreadId = std::thread::id;
inline ThreadId this_thread() { return std::this_thread::get_id(); }
inline void yield_thread() { std::this_thread::yield(); }
#endif

}  // namespace polyhead::inline internal
