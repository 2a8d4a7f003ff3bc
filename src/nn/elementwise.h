// Elementwise products and sums of tensors with any strides, for the attention layer.
#pragma once

#include <span>

#include "polyhead/executor.h"
#include "polyhead/workspace.h"

#pragma GCC visibility push(default)  // These functions are exported, because libraries of other components call them.
namespace polyhead::nn::inline internal {

// Computes out = a * b; a and b broadcast to the shape of `out`.
void multiply(ConstTensorView a, ConstTensorView b, TensorView out, Executor* executor);

// Multiplies row r of x [*,E] by factors[r]; factors [*] is floating or bool. A factor of 0 gives zeros, even if the row has NaN.
void scale_rows(TensorView x, ConstTensorView factors, Executor* executor);

// Computes the gradients of gated = attended * y with y = sigmoid(x), in one pass. On entry `d` is the gradient of gated. d_x = d * attended * y * (1 - y);
// then d *= y, the gradient of attended. attended broadcasts to y.
void gate_backward(ConstTensorView y, ConstTensorView attended, TensorView d, TensorView d_x, Executor* executor);

// Computes sums += x; both have the same shape.
void add(ConstTensorView x, TensorView sums, Executor* executor);

// A pair of tensors for add(), which computes sum += x for each pair. Both have one shape and dtype. add() allocates before it writes, so if it throws, no sum
// has changed.
struct Sum {
  ConstTensorView x;
  TensorView sum;
};
void add(std::span<const Sum> sums, Executor* executor);

// Sets `target` to the sums of x over the dimensions along which target broadcasts to x. Sums are float64, because many terms cancel. Elements of target that
// share memory share one sum.
void sum_to(ConstTensorView x, TensorView target);

// Returns a copy of x [*,E] in which some rows are zeros: the non-finite rows whose gradient in d_y [*,O] is all zero. Absent if there is no such row. A masked
// position has a gradient of zero and must not change the gradient of a weight, but 0 x NaN is NaN.
Tensor without_unreached_rows(ConstTensorView x, ConstTensorView d_y, Executor* executor, const Workspace* workspace);

enum class Reduce : std::uint8_t { sum, mean };

// Computes the sum or the mean reduced[*,1,E] of x[*,L,E] over the positions for which keep [*,L] is true (bool; absent: all positions). The result is 0 if
// there is no such position. Any floating dtypes.
void reduce_positions(ConstTensorView x, ConstTensorView keep, Reduce reduce, TensorView reduced, Executor* executor);

// Computes the gradient of the mean: d_x[*,L,E] = d_mean / count at the `count` positions where keep is true, and 0 at the other positions.
void spread_mean(ConstTensorView d_mean, ConstTensorView keep, TensorView d_x, Executor* executor);

}  // namespace polyhead::nn::inline internal
#pragma GCC visibility pop
