// Keeps floating-point exceptions inside of an operation. Vector kernels compute lanes that no result reads (masked keys, the ends of rows), with
// infinities and NaN in them: a caller who has enabled traps (feenableexcept) would be ended by SIGFPE although every result is finite.
#pragma once

#include <cfenv>

#ifdef __SSE2__
#include <xmmintrin.h>
#endif

namespace polyhead {

// While it lives, this thread has no traps; then traps and flags are again what they were. Rounding and flush-to-zero stay the caller's.
class QuietArithmetic {
 public:
  QuietArithmetic(const QuietArithmetic&) = delete;
  QuietArithmetic& operator=(const QuietArithmetic&) = delete;
#ifdef __SSE2__  // MXCSR alone, in 10 ns: nothing that may raise an exception is computed by the x87 unit
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
