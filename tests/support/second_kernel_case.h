// Second derivatives by the kernels beside the reference: within the error of the arithmetic.
#pragma once

#include "support/kernel_case.h"
#include "support/second_derivatives.h"

namespace polyhead::test {

// The same tangents in float64.
SecondCase in_float64(const SecondCase& narrow);

// How far a result may be from the exact one: the share of Tolerances of the largest that its terms can be.
struct SecondTolerances {
  double out, lse, d_q, d_k, d_v, d_bias, d_sink, d_relative_bias;

  SecondTolerances(const SecondCase& s, const Tolerances& first);
};

void expect_near(const SecondOutputs& actual, const SecondOutputs& expected, const SecondTolerances& t, double relative);

}  // namespace polyhead::test
