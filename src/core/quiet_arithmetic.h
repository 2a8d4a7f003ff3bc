// Disables floating-point traps during an operation. Vector kernels also compute elements that no result uses (masked keys, ends of rows), and these may
// hold infinity or NaN. If the caller has enabled traps (feenableexcept), such elements would raise SIGFPE although every result is finite.
#pragma once

#include <cfenv>

#ifdef __SSE2__
#include <xmmintrin.h>
#endif

namespace polyhead {

// Disables the traps of this thread during its lifetime, then restores traps and exception flags. Rounding mode and flush-to-zero stay as the caller set them.
class QuietArithmetic {
 public:
  QuietArithmetic(const QuietArithmetic&) = delete;
  QuietArithmetic& operator=(const QuietArithmetic&) = delete;
#ifdef __SSE2__  // saves and restores MXCSR only, in 10 ns: the x87 unit computes nothing that may raise an exception
  QuietArithmetic() { _mm_setcsr(before_ | _MM_MASK_MASK); }
  ~QuietArithmetic() { _mm_setcsr(before_); }

 private:
  const unsigned before_ = _mm_getcsr();
#else
  QuietArithmetic() { std::feholdexcept(&before_); }
  ~QuietArithmetic() { std::fesetenv(&before_); }

 private:
  std::fenv_t before_{};
#endif
};

}  // namespace polyhead
