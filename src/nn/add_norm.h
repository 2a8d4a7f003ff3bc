// Adds a residual connection and normalises the sum, in one pass over memory.
#pragma once

#include "polyhead/nn/norm.h"

#pragma GCC visibility push(default)  // These functions are exported, because libraries of other components call them.
namespace polyhead::nn::inline internal {

// Computes sums += x and then y = norm(sums), for each row while it is in the first-level cache. The tensors are [*,width], with one shape and the norm's
// dtype; none may overlap another. The bits equal those of an addition followed by the norm.
void add_and_normalise(const Norm& norm, ConstTensorView x, TensorView sums, TensorView y, Executor* executor);

}  // namespace polyhead::nn::inline internal
#pragma GCC visibility pop
