// Compares results of sdpa_jvp and sdpa_backward_backward on the kernels with the reference, within the error bounds of the arithmetic.
#pragma once

#include "support/kernel_case.h"
#include "support/second_derivatives.h"

namespace polyhead::test {

// Returns the same case with all tensors, tangents included, converted to float64.
SecondCase in_float64(const SecondCase& narrow);

// The error bound of each result: Tolerances::relative times the largest magnitude that the terms of the result can have.
struct SecondTolerances {
  double out, lse, d_q, d_k, d_v, d_bias, d_sink, d_relative_bias;

  SecondTolerances(const SecondCase& s, const Tolerances& first);
};

void expect_near(const SecondOutputs& actual, const SecondOutputs& expected, const SecondTolerances& t, double relative);

}  // namespace polyhead::test
