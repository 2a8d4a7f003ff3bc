// The data that the interpreter of score programs (polyhead/score_program.h) reads, in structs without functions, and its kernel functions.
#pragma once

#include <cstdint>

#include "polyhead/score_rule.h"

namespace polyhead::cpu {

struct ScoreStep {
  std::uint8_t op;               // ScoreOp
  bool varies;                   // true: the register `to` holds a number for each key; false: a single number
  std::int32_t to, a, b, c, d;   // indices of registers: `to` is written, the others are read
  double value;
  // The following members are set only if op is ScoreOp::load.
  const void* table = nullptr;
  bool float64 = false;
  int rank = 0;
  int unit_axis = -1;            // the axis whose index depends on the key, if there is one such axis and its index changes by `unit` from one key to the next; else -1
  int unit = 0;                  // 1 or -1
  std::int64_t extents[4] = {}, strides[4] = {};
};

struct ScoreSum {
  const ScoreStep* load;
  std::int32_t derivative;
  std::int64_t first, strides[4];
};

struct ScoreSteps {
  const ScoreStep *once, *per_row;
  int once_count, per_row_count, registers;
  const bool* varies;  // for each register: whether it holds a number for each key (ScoreStep::varies)
  std::int32_t result;  // register of the new score; in the backward pass, register of the derivative of the new score by the old score
  const ScoreSum* sums;
  int sum_count;
};

struct ScoreProgramKernels {
  std::int64_t (*scratch_bytes)(const ScoreSteps& steps);
  void (*forward)(const ScoreSteps& steps, const ScoreTile& tile, void* scratch);
  void (*backward)(const ScoreSteps& steps, const ScoreTile& tile, const void* before, double* sums, void* scratch);
};

}  // namespace polyhead::cpu
