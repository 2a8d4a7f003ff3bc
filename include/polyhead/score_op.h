// The operations that an instruction of a score program (score_program.h) may have.
#pragma once

#include <cstdint>

#pragma GCC visibility push(default)
namespace polyhead {

// Registers hold float or double, the type of the score tile. True is 1 and false is 0. Positions and indices are exact up to 2^24 in float.
enum class ScoreOp : std::uint8_t {
  constant,                                  // the number ScoreInstruction::value
  score, batch, head, query, key,            // the pair's old score, sequence, head, and positions of its query and key
  load,                                      // an element of a table at the indices a, b, c, d (as many as the table has dimensions)
  add, subtract, multiply, divide, maximum, minimum,  // operations on registers a and b
  less, less_equal, equal, logical_and, logical_or,   // operations on registers a and b
  negate, absolute, square_root, exp, log, tanh, sigmoid, floor, logical_not,  // functions of register a
  select,                                    // b where a is not 0, else c
};
inline constexpr int kScoreOps = static_cast<int>(ScoreOp::select) + 1;

}  // namespace polyhead
#pragma GCC visibility pop
