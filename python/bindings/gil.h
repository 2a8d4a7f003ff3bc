#pragma once

#include <Python.h>
#include <unistd.h>
#ifdef __GLIBCXX__
#include <cxxabi.h>
#endif

namespace polyhead::python {

// Takes the GIL by f(). If the interpreter is exiting, CPython before 3.14 ends a thread that takes the GIL again with pthread_exit(). That
// unwinds the thread's stack and aborts the process at the first C++ destructor or catch (...). Therefore such a thread waits here for the
// end of the process, as it does in CPython 3.14.
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

// Releases the GIL for its lifetime.
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

// Has the GIL for its lifetime, in a thread that released it: for calls of Python inside of without_gil().
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

template <class F>
void without_gil(F&& f) {
  const ReleasedGil released;
  f();
}

}  // namespace polyhead::python
