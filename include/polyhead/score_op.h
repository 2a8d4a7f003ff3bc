// The operations that an instruction of a score program (score_program.h) may have, and the type of the functions that compute runs of instructions.
#pragma once

#include <cstdint>

#pragma GCC visibility push(default)
namespace polyhead {

// The operations. Registers hold float or double, the type of the score tile. True is 1 and false is 0. In float, positions and indices are exact up to 2^24.
enum class ScoreOp : std::uint8_t {
  constant,                                  // the number ScoreInstruction::value
  score, batch, head, query, key,            // the old score, the sequence and the head of a pair, and the positions of its query and key
  load,                                      // an element of a table at the indices in registers a, b, c and d, as many as the table has dimensions
  add, subtract, multiply, divide, maximum, minimum,  // arithmetic on registers a and b
  less, less_equal, equal, logical_and, logical_or,   // comparisons and logic on registers a and b
  negate, absolute, square_root, exp, log, tanh, sigmoid, floor, logical_not,  // functions of register a
  select,                                    // register b where register a is not 0, else register c
  sine, cosine, arctangent, error_function, complementary_error, round,  // functions of register a; `round` rounds halves to the even integer
};
inline constexpr int kScoreOps = static_cast<int>(ScoreOp::round) + 1;

struct ScoreOpInfo {
  const char* name;
  // number of registers, among a, b, c and d, that the operation reads; -1 for load, which reads one register for each dimension of its table
  int operands;
  bool in_runs = false;  // true: the operation may be in a run of instructions. It rounds at most once, so every implementation gives the same bits.
};
inline constexpr ScoreOpInfo kScoreOpInfo[] = {
    {"constant", 0}, {"score", 0}, {"batch", 0}, {"head", 0}, {"query", 0}, {"key", 0},
    {"load", -1},
    {"add", 2, true}, {"subtract", 2, true}, {"multiply", 2, true}, {"divide", 2, true}, {"maximum", 2, true}, {"minimum", 2, true},
    {"less", 2, true}, {"less_equal", 2, true}, {"equal", 2, true}, {"logical_and", 2, true}, {"logical_or", 2, true},
    {"negate", 1, true}, {"absolute", 1, true}, {"square_root", 1, true}, {"exp", 1}, {"log", 1}, {"tanh", 1}, {"sigmoid", 1}, {"floor", 1, true}, {"logical_not", 1, true},
    {"select", 3, true},
    {"sine", 1}, {"cosine", 1}, {"arctangent", 1}, {"error_function", 1}, {"complementary_error", 1}, {"round", 1, true},
};
static_assert(sizeof(kScoreOpInfo) / sizeof(ScoreOpInfo) == kScoreOps);

inline constexpr int kMostScoreInstructions = 256;  // maximum number of instructions of a score program

// A function that computes a run of instructions (score_program.h) on arrays of `vectors` x kScoreRunBytes bytes. An input that is the same for all keys points
// to one number. An output may be the same array as an input, so the function must read each vector before it writes it.
using ScoreRunFunction = void (*)(const void* const* inputs, void* const* outputs, std::int64_t vectors);
inline constexpr std::int64_t kScoreRunBytes = 64;

}  // namespace polyhead
#pragma GCC visibility pop
