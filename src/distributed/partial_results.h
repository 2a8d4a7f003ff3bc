// Joins results that were computed from parts of the keys:  out = sum_i exp(lse_i - lse) out_i,  lse = log sum_i exp(lse_i)
// (online softmax, Milakov and Gimelshein 2018; blockwise: Liu et al. 2023, section 3).
#pragma once

#include "polyhead/executor.h"
#include "polyhead/tensor.h"

namespace polyhead::distributed {

// Adds the result for further keys, out [*,N,rows,V] and lse [*,N,rows,1], to the result so far: sums [*,N,rows,V] in the same dtype and all_lse float64
// [*,N,rows,1]. Before the first call, sums is 0 and all_lse is -infinity. The rows of all tensors have the same row-major order, and V is contiguous.
void join(const ConstTensorView& out, const ConstTensorView& lse, const TensorView& sums, const TensorView& all_lse, Executor* executor);

// Adds a sink [*,N,rows,1] to the result, as a key whose value is 0. A row without keys stays 0.
void join_sink(const ConstTensorView& sink, const TensorView& sums, const TensorView& all_lse);

// Writes the gradient of each row's sink, float64 [*,N,rows,1]: -exp(sink - lse) <d_out, out>     (docs/maths.md, eq. 7a)
void differentiate_sink(const ConstTensorView& sink, const ConstTensorView& out, const ConstTensorView& lse, const ConstTensorView& d_out, const TensorView& d_sink);

}  // namespace polyhead::distributed
