#include "gil.h"

#include <pthread.h>

#include <atomic>

namespace polyhead::python {
namespace {

std::atomic<unsigned long> main_thread{0};  // identifier of Python's main thread; 0: not known yet

}  // namespace

bool is_main_thread() {
  unsigned long known = main_thread.load(std::memory_order_relaxed);
  if (known == 0) {
    // In a forked process, the thread that forked becomes the main thread.
    [[maybe_unused]] static const int kAtFork = pthread_atfork(nullptr, nullptr, [] { main_thread = 0; });
    known = nanobind::cast<unsigned long>(nanobind::module_::import_("threading").attr("main_thread")().attr("ident"));
    main_thread = known;
  }
  return known == PyThread_get_thread_ident();
}

bool SignalWatch::wanted() {
  const TakenGil gil;
  if (PyErr_CheckSignals() == 0) return false;
  raised_.emplace();
  return true;
}

}  // namespace polyhead::python
