#pragma once

#include <cstdint>

#pragma GCC visibility push(default)
namespace polyhead {

// Result of a row whose keys are all masked. A row whose unmasked scores are all -inf gives zero in every mode.
enum class EmptyRows : std::uint8_t {
  zero,      // out = 0, lse = -inf, zero gradients
  uniform,   // every key has probability 1/S, and the gradients of the scores are 0: as if masked scores were set to -1e6
  unmasked,  // the row is computed without its mask: as if 1e9 were subtracted from masked scores in float64; the same subtraction in float32 would give p = 1/S (docs/maths.md)
};

}  // namespace polyhead
#pragma GCC visibility pop
