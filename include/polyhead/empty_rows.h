#pragma once

#include <cstdint>

namespace polyhead {

// What a row without any key gives. A row whose unmasked scores are all -inf is empty in every mode and gives zero.
enum class EmptyRows : std::uint8_t {
  zero,      // out = 0, lse = -inf, zero gradients
  uniform,   // as the fill "masked scores = -1e6" behaves: every key with probability 1/S, no gradient to the scores
  unmasked,  // as the offset "masked scores - 1e8" behaves: the row as if there were no mask
};

}  // namespace polyhead
