// The operations of a score program (score_program.h).
#pragma once

#include <cstdint>

#pragma GCC visibility push(default)
namespace polyhead {

// Truth values are 0 and 1. Positions and indices are numbers of the tile's type: exact up to 2^24 in float.
enum class ScoreOp : std::uint8_t {
  constant,                                  // value
  score, batch, head, query, key,            // of the pair
  load,                                      // an element of a table at the indices a, b, c, d (as many as the table has dimensions)
  add, subtract, multiply, divide, maximum, minimum,  // of a and b
  less, less_equal, equal, logical_and, logical_or,   // of a and b
  negate, absolute, square_root, exp, log, tanh, sigmoid, floor, logical_not,  // of a
  select,                                    // b where a is not 0, else c
};
inline constexpr int kScoreOps = static_cast<int>(ScoreOp::select) + 1;

}  // namespace polyhead
#pragma GCC visibility pop
