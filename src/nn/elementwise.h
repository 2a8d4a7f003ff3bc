// Elementwise products and sums over strided tensors, for the attention layer.
#pragma once

#include <span>

#include "polyhead/executor.h"
#include "polyhead/workspace.h"

#pragma GCC visibility push(default)  // exported: the libraries of other components call these
namespace polyhead::nn::inline internal {

// out = a * b; a and b broadcast to the shape of `out`.
void multiply(ConstTensorView a, ConstTensorView b, TensorView out, Executor* executor);

// Multiplies row r of x [*,E] by factors[r], with factors [*] floating or bool. A factor of 0 gives zeros, even if the row holds NaN.
void scale_rows(TensorView x, ConstTensorView factors, Executor* executor);

// Gradient of gated = attended * y, y = sigmoid(x), in one pass: d_x = d * attended * y * (1 - y), then d *= y. attended broadcasts to y.
void gate_backward(ConstTensorView y, ConstTensorView attended, TensorView d, TensorView d_x, Executor* executor);

// sums += x, both of one shape
void add(ConstTensorView x, TensorView sums, Executor* executor);

// Computes sum += x for each pair (x, sum) of one shape and dtype. Allocates before it writes: if it throws, no sum has changed.
struct Sum {
  ConstTensorView x;
  TensorView sum;
};
void add(std::span<const Sum> sums, Executor* executor);

// Sets `target` to x summed over the dimensions along which target broadcasts to x. Sums are float64, because many terms cancel. Positions of
// target that share memory share one sum.
void sum_to(ConstTensorView x, TensorView target);

// Returns a copy of x [*,E] with zeros in the non-finite rows whose gradient in d_y [*,O] is all zero; absent if there is no such row. A masked
// position has a gradient of zero and must not change the gradient of a weight, but 0 x NaN is NaN.
Tensor without_unreached_rows(ConstTensorView x, ConstTensorView d_y, Executor* executor, const Workspace* workspace);

enum class Reduce : std::uint8_t { sum, mean };

// reduced[*,1,E] = sum or mean of x[*,L,E] over the positions where keep [*,L] (bool; absent: all) is true; 0 where none is.
// Any floating dtypes.
void reduce_positions(ConstTensorView x, ConstTensorView keep, Reduce reduce, TensorView reduced, Executor* executor);

// Gradient of the mean: d_x[*,L,E] = d_mean / count at the `count` positions where keep is true, else 0
void spread_mean(ConstTensorView d_mean, ConstTensorView keep, TensorView d_x, Executor* executor);

}  // namespace polyhead::nn::inline internal
#pragma GCC visibility pop
