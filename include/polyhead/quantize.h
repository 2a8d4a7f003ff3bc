// Symmetric quantisation of rows to int8 with one scale for each row: the form in which a cache stores int8 keys and values (SdpaForward::k_scale).
#pragma once

#include "polyhead/executor.h"
#include "polyhead/tensor_view.h"

#pragma GCC visibility push(default)
namespace polyhead {

// x [..,W] floating; out [..,W] int8 and scale [..] float32 are written and may not overlap another tensor. In float32, for each row:
//   scale = max |x| / 127        out = x / scale, rounded to nearest even, in [-127,127]; 0 if scale is 0
// so that |float32(scale out) - x| <= scale (1/2 + 2^-15) + 2^-142. (2^-142 matters only if scale is subnormal.)
// A row with a NaN or an infinity becomes a row of NaN: scale NaN, out 0. float64 is rounded to float32 first.
// executor == nullptr: the library's own threads.
void quantize_rows(ConstTensorView x, TensorView out, TensorView scale, Executor* executor = nullptr);

}  // namespace polyhead
#pragma GCC visibility pop
