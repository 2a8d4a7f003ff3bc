// Sinusoidal positions, which are added to a model's input. For learned positions use an Embedding with EmbeddingOptions::write = Write::add; for rotary
// positions see rotary_embedding.h.
#pragma once

#include <cstdint>

#include "polyhead/tensor_view.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

// Writes the rows of out [T,E], of any floating dtype, for the positions p = first, first + 1, …:
//   out[p - first, 2i] = sin(p base^(-2i/E)),   out[p - first, 2i + 1] = cos(p base^(-2i/E))       (Vaswani et al. 2017, section 3.5)
// Computed in float64 and rounded once. Nothing is learned, so there is no backward pass.
void sinusoidal_positions(TensorView out, std::int64_t first = 0, double base = 10000);

}  // namespace polyhead::nn
#pragma GCC visibility pop
