// The interpreter of score programs (polyhead/score_program.h), as plain data for kernel sources.
#pragma once

#include <cstdint>

#include "polyhead/score_rule.h"

namespace polyhead::cpu {

struct ScoreStep {
  std::uint8_t op;               // ScoreOp
  bool varies;                   // true: the register has a number for each key; false: one number
  std::int32_t to, a, b, c, d;   // registers
  double value;
  // Set only for a load:
  const void* table = nullptr;
  bool float64 = false;
  int rank = 0;
  int unit_axis = -1;            // the only axis whose index varies with the key, if that index changes by `unit` from key to key
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
  const bool* varies;  // for each register: ScoreStep::varies
  std::int32_t result;  // register of the new score or, in the backward pass, of its derivative
  const ScoreSum* sums;
  int sum_count;
};

struct ScoreProgramKernels {
  std::int64_t (*scratch_bytes)(const ScoreSteps& steps);
  void (*forward)(const ScoreSteps& steps, const ScoreTile& tile, void* scratch);
  void (*backward)(const ScoreSteps& steps, const ScoreTile& tile, const void* before, double* sums, void* scratch);
};

}  // namespace polyhead::cpu
