// Products and sums over strided tensors that the attention layer needs between its maps.
#pragma once

#include "polyhead/tensor_view.h"

namespace polyhead::nn {

// x = 1 / (1 + exp(-x))
void sigmoid_in_place(TensorView x);

// out = a * b, shapes broadcast to out's
void multiply(ConstTensorView a, ConstTensorView b, TensorView out);

// d_x = d_y * y * (1 - y) * factor: back through y = sigmoid(x), times whatever y was multiplied with. d_x may be d_y.
void sigmoid_backward(ConstTensorView y, ConstTensorView factor, ConstTensorView d_y, TensorView d_x);

// sums += x, x broadcast to the shape of sums or sums' memory shared between its elements
void add(ConstTensorView x, TensorView sums);

enum class Reduce : std::uint8_t { sum, mean };

// reduced[*,1,E] = sum or mean of x[*,L,E] over the positions that keep [*,L] (bool; absent: all) has true; 0 where there is none
void reduce_positions(ConstTensorView x, ConstTensorView keep, Reduce reduce, TensorView reduced);

// The way back of the mean: d_x[*,L,E] = d_mean / count at the kept positions, else 0
void spread_mean(ConstTensorView d_mean, ConstTensorView keep, TensorView d_x);

}  // namespace polyhead::nn
