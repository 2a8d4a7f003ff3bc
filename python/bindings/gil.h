#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>
#ifdef __GLIBCXX__
#include <cxxabi.h>
#endif

#include <optional>
#include <type_traits>

#include "core/interrupt.h"

namespace polyhead::python {

// Takes the GIL by calling f(). While the interpreter exits, CPython before 3.14 ends every thread that takes the GIL, by pthread_exit(). pthread_exit()
// unwinds the thread's stack, and aborts the process at the first C++ destructor or catch (...). Therefore such a thread waits here for the end of the process,
// as CPython 3.14 lets it wait.
template <class F>
void take_gil(const F& f) {
#ifdef __GLIBCXX__
  try {
    f();
  } catch (const abi::__forced_unwind&) {
    for (;;) pause();
  }
#else
  f();
#endif
}

// Releases the GIL as long as the object lives.
class ReleasedGil {
 public:
  ReleasedGil() : state_(PyEval_SaveThread()) {}
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;
  ~ReleasedGil() {
    take_gil([&] { PyEval_RestoreThread(state_); });
  }

 private:
  PyThreadState* state_;
};

// Holds the GIL as long as the object lives. Code inside of without_gil(), where the GIL is released, uses this class to call Python.
class TakenGil {
 public:
  TakenGil() {
    take_gil([&] { state_ = PyGILState_Ensure(); });
  }
  TakenGil(const TakenGil&) = delete;
  TakenGil& operator=(const TakenGil&) = delete;
  ~TakenGil() { PyGILState_Release(state_); }

 private:
  PyGILState_STATE state_{};
};

// Whether the calling thread is Python's main thread, the only thread in which signal handlers run. The caller must hold the GIL.
bool is_main_thread();

// Runs the handlers of pending signals, as Python does between two instructions. An exception of a handler, such as KeyboardInterrupt, ends the operation.
class SignalWatch final : public InterruptWatch {
 public:
  explicit SignalWatch(std::optional<nanobind::python_error>& raised) : raised_(raised) {}

 private:
  bool wanted() override;

  std::optional<nanobind::python_error>& raised_;
};

// Runs f() without the GIL. In the main thread, pending signals are handled about every 0.2 s.
template <class F>
std::invoke_result_t<F> without_gil(F&& f) {
  if (!is_main_thread()) {
    const ReleasedGil released;
    return f();
  }
  std::optional<nanobind::python_error> raised;  // the exception of a signal handler, which is raised even if f() failed too
  const auto watched = [&] {
    const ReleasedGil released;
    const SignalWatch watch(raised);
    return f();
  };
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<F>>) {
      watched();
      if (!raised) return;
    } else {
      auto result = watched();
      if (!raised) return result;
    }
  } catch (...) {
    if (!raised) throw;
  }
  throw nanobind::python_error(*raised);
}

}  // namespace polyhead::python
