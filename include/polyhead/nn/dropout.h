// Dropout of a tensor in training: of embeddings, or of what a layer adds to the residual stream. For dropout of attention weights see
// MultiHeadAttentionConfig::dropout.
#pragma once

#include <cstdint>

#include "polyhead/executor.h"
#include "polyhead/nn/seed.h"
#include "polyhead/tensor_view.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

// Drops elements of x with probability p: y = x / (1 - p) for an element that is kept, else 0 (Srivastava et al. 2014, section 10). x and y are [*,E] of one
// floating dtype, with any strides; y may be the same view as x.
// The gradient d_x is dropout() of d_y with the same p and seed: the keep bits are computed again and never stored. Element e of row r (row-major over *) is
// kept if dropout of attention weights with this seed keeps (b, n, t, s) = (0, 0, r, e) (docs/maths.md, section 2). The bits do not depend on threads or
// strides. Use another seed for each call and each step.
void dropout(ConstTensorView x, TensorView y, double p, std::uint64_t seed, Executor* executor = nullptr);

}  // namespace polyhead::nn
#pragma GCC visibility pop
