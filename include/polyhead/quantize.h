// Quantises rows of numbers to int8, with one scale for each row. A key/value cache stores int8 keys and values in this form (SdpaForward::k_scale).
#pragma once

#include "polyhead/executor.h"
#include "polyhead/tensor_view.h"

#pragma GCC visibility push(default)
namespace polyhead {

// Quantises x [..,W], floating. It writes out [..,W] int8 and scale [..] float32, which may not overlap another tensor. For each row it computes in float32:
//   scale = max |x| / 127        out = x / scale, rounded to nearest even, in [-127,127]; 0 if scale is 0
// so that |float32(scale out) - x| <= scale (1/2 + 2^-15) + 2^-142. (2^-142 matters only if scale is subnormal.)
// A row with a NaN or an infinity stands for a row of NaN: its scale is NaN, and out is 0. float64 numbers are rounded to float32 first.
// executor == nullptr: the library's own threads.
void quantize_rows(ConstTensorView x, TensorView out, TensorView scale, Executor* executor = nullptr);

}  // namespace polyhead
#pragma GCC visibility pop
