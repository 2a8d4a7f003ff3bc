// Dropout of a tensor, for training: of embeddings, or of a summand of the residual stream. (For attention weights see MultiHeadAttentionConfig::dropout.)
#pragma once

#include <cstdint>

#include "polyhead/executor.h"
#include "polyhead/nn/seed.h"
#include "polyhead/tensor_view.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

// y = x / (1 - p) where an element is kept, else 0 (Srivastava et al. 2014, section 10; each element is kept with probability 1 - p). x and y
// [*,E] of one floating dtype, any strides; y may be x (the same view). The gradient is this function of d_y with the same p and seed:
// keep bits are computed again and never stored. Element e of row r (row-major over *) is kept where attention dropout with this seed keeps (b, n,
// t, s) = (0, 0, r, e) (docs/maths.md, section 2): no bit depends on threads or strides. Use another seed for each use and each step.
void dropout(ConstTensorView x, TensorView y, double p, std::uint64_t seed, Executor* executor = nullptr);

}  // namespace polyhead::nn
#pragma GCC visibility pop
