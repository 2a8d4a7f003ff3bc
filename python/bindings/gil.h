#pragma once

#include <Python.h>
#include <unistd.h>
#ifdef __GLIBCXX__
#include <cxxabi.h>
#endif

namespace polyhead::python {

// The GIL is released for its lifetime. Before 3.14 CPython ends a thread that comes back to an interpreter which is exiting with pthread_exit(), whose
// unwinding aborts the process at the first destructor or catch-all of C++; such a thread waits here for the end of the process instead, as in 3.14.
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
