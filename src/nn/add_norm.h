// The end of a layer with a residual connection.
#pragma once

#include "polyhead/nn/layer_norm.h"

namespace polyhead::nn {

// sums += x, y = norm(sums), row by row while it is in the first-level cache: tensors [*,width] of one shape and the norm's dtype, of which
// none overlaps another. Bits are those of the two steps.
void add_and_normalise(const LayerNorm& norm, ConstTensorView x, TensorView sums, TensorView y, Executor* executor);

}  // namespace polyhead::nn
