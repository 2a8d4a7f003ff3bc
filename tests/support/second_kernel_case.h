// Compares results of sdpa_jvp and sdpa_backward_backward on the kernels with the reference, within the error bounds of the arithmetic.
#pragma once

#include "support/kernel_case.h"
#include "support/second_derivatives.h"

namespace polyhead::test {

// Returns the same case with all tensors, tangents included, converted to float64.
SecondCase in_float64(const SecondCase& narrow);

// Error bounds of the results. Each is a relative error (Tolerances::lse for lse, Tolerances::relative for the others) times a bound of the largest term that
// is summed in the result. For d_sink and d_relative_bias it is also multiplied by the square root of the number of terms.
struct SecondTolerances {
  double out, lse, d_q, d_k, d_v, d_bias, d_sink, d_relative_bias;

  SecondTolerances(const SecondCase& s, const Tolerances& first);
};

void expect_near(const SecondOutputs& actual, const SecondOutputs& expected, const SecondTolerances& t, double relative);

}  // namespace polyhead::test
