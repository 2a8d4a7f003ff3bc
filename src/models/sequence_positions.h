#pragma once

#include "polyhead/nn/positions.h"
#include "polyhead/tensor.h"

namespace polyhead::models {

// Returns Marian's table [positions,E]: nn::sinusoidal_positions() with all sines before all cosines. If the width is odd, there is one more sine than cosines.
inline Tensor sinusoidal_halves(DType dtype, const Shape& shape) {
  Tensor interleaved(dtype, shape), halves(dtype, shape);
  nn::sinusoidal_positions(interleaved);
  const std::int64_t width = shape[1], sines = (width + 1) / 2;
  for (std::int64_t i = 0; i < width; ++i) copy(interleaved.view().select(1, i), halves.view().select(1, i % 2 == 0 ? i / 2 : sines + i / 2));
  return halves;
}

}  // namespace polyhead::models
