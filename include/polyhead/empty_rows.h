#pragma once

#include <cstdint>

#pragma GCC visibility push(default)
namespace polyhead {

// What attention returns for a query whose mask allows no key. A row whose unmasked scores are all -inf gives zero in every mode.
enum class EmptyRows : std::uint8_t {
  zero,      // out = 0, lse = -inf, zero gradients
  uniform,   // every key has probability 1/S, and the gradients of the scores are 0, as if each masked score were -1e6
  // The row is computed without its mask, as if 1e9 were subtracted from each masked score in float64. The same subtraction in float32 would give p = 1/S
  // (docs/maths.md).
  unmasked,
};

}  // namespace polyhead
#pragma GCC visibility pop
