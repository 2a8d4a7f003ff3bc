// The data that the interpreter of score programs (polyhead/score_program.h) reads, and its kernel functions. The data are in structs without functions.
#pragma once

#include <cstdint>

#include "polyhead/score_op.h"
#include "polyhead/score_rule.h"

namespace polyhead::cpu {

// What the number in a register depends on. `tile`: one number for a tile. `row`: one for each row. `key`: one for each key. `distance`: one for each distance
// (key index minus query index, without the offset of the diagonal), so that a tile has rows + keys - 1 numbers. `pair`: one for each pair of a query and a
// key.
enum class ScoreKind : std::uint8_t { tile, row, key, distance, pair };

struct ScoreStep;

// Consecutive steps that one function computes, if a caller has provided such a function (provide_score_run).
struct ScoreRunSteps {
  int steps, input_count, output_count;
  const std::int32_t *inputs, *outputs;  // registers
  ScoreRunFunction functions[2];         // one for float, one for double; if nullptr, the interpreter computes the steps
};

struct ScoreStep {
  std::uint8_t op;               // ScoreOp
  ScoreKind kind;                // kind of the register `to`
  std::int32_t to, a, b, c, d;   // indices of registers: `to` is written, the others are read
  double value;
  int distance = 0;              // 1: the step computes key index - query index; -1: query index - key index; 0: it computes `op`
  const ScoreRunSteps* run = nullptr;  // the run of steps that begins with this step; nullptr if none does
  // The following members are set only if op is ScoreOp::load.
  const void* table = nullptr;
  bool float64 = false;
  int rank = 0;
  int unit_axis = -1;            // an axis whose index changes by `unit` from key to key, if no other axis depends on the key; else -1
  int unit = 0;                  // change of this axis' index from key to key: 1 or -1
  std::int64_t extents[4] = {}, strides[4] = {};
};

struct ScoreSum {
  const ScoreStep* load;
  std::int32_t derivative;
  std::int64_t first, strides[4];
};

// Bytes of a register for a range of keys: a power of two between these, which a program chooses so that its registers fit in the first-level cache.
inline constexpr std::int32_t kLeastScoreRangeBytes = 512, kMostScoreRangeBytes = 2048;
inline constexpr int kMostScoreRows = 16;  // a register of the kind `distance` serves at most this many rows at a time

struct ScoreSteps {
  // The steps by the kind of their result: per_tile has `tile`, per_range `key`, per_distance `distance`, and per_row `row` and `pair`.
  const ScoreStep *per_tile, *per_range, *per_distance, *per_row;
  int per_tile_count, per_range_count, per_distance_count, per_row_count;
  int registers;
  const ScoreKind* kinds;       // per register
  const std::int32_t* places;   // byte offset of each register in the scratch memory, a multiple of kScoreRunBytes; -1: not in memory
  std::int64_t bytes;           // size of the scratch memory in bytes
  std::int32_t range_bytes;     // bytes of a range of keys
  std::int32_t score;           // register of the old score; -1: no step reads it
  // Register of the new score. In the backward pass: register of the derivative of the new score with respect to the old score.
  std::int32_t result;
  bool result_is_one;           // backward pass: the derivative is 1 for every pair
  const ScoreSum* sums;
  int sum_count;
};

// Returns the bytes of a register, a multiple of kScoreRunBytes. A register of kind key or pair has a number for each key of a range. A register of kind
// distance has kMostScoreRows more numbers. A register of kind tile or row is one vector.
constexpr std::int32_t score_register_bytes(ScoreKind kind, std::int32_t range_bytes) {
  constexpr std::int32_t kMoreForDistances = kMostScoreRows * static_cast<std::int32_t>(sizeof(double));
  static_assert(kLeastScoreRangeBytes % kScoreRunBytes == 0 && kMoreForDistances % kScoreRunBytes == 0);
  switch (kind) {
    case ScoreKind::distance: return range_bytes + kMoreForDistances;
    case ScoreKind::key: case ScoreKind::pair: return range_bytes;
    case ScoreKind::tile: case ScoreKind::row: break;
  }
  return kScoreRunBytes;
}

struct ScoreProgramKernels {
  static const ScoreProgramKernels* const of_sets[];  // one entry per instruction set, in the order of kernel_sets()
  void (*forward)(const ScoreSteps& steps, const ScoreTile& tile, void* scratch);
  void (*backward)(const ScoreSteps& steps, const ScoreTile& tile, const void* before, double* sums, void* scratch);
};

}  // namespace polyhead::cpu
