#pragma once

#include <Python.h>
#include <unistd.h>
#ifdef __GLIBCXX__
#include <cxxabi.h>
#endif

namespace polyhead::python {

// Releases the GIL for its lifetime. If the interpreter is exiting, CPython before 3.14 ends a thread that takes the GIL again with
// pthread_exit(). That unwinds the thread's stack and aborts the process at the first C++ destructor or catch (...). Therefore such a
// thread waits here for the end of the process, as it does in CPython 3.14.
class ReleasedGil {
 public:
  ReleasedGil() : state_(PyEval_SaveThread()) {}
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;
  ~ReleasedGil() {
#ifdef __GLIBCXX__
    try {
      PyEval_RestoreThread(state_);
    } catch (const abi::__forced_unwind&) {
      for (;;) pause();
    }
#else
    PyEval_RestoreThread(state_);
#endif
  }

 private:
  PyThreadState* state_;
};

template <class F>
void without_gil(F&& f) {
  const ReleasedGil released;
  f();
}

}  // namespace polyhead::python
