// Residual connection followed by a norm, in one pass.
#pragma once

#include "polyhead/nn/norm.h"

#pragma GCC visibility push(default)  // exported: the libraries of other components call these
namespace polyhead::nn::inline internal {

// Computes sums += x, then y = norm(sums), for each row while it is in the first-level cache. Tensors [*,width] of one shape and the norm's dtype; none
// may overlap another. The bits equal those of the two steps.
void add_and_normalise(const Norm& norm, ConstTensorView x, TensorView sums, TensorView y, Executor* executor);

}  // namespace polyhead::nn::inline internal
#pragma GCC visibility pop
