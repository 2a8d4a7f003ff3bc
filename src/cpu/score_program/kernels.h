// The data that the interpreter of score programs (polyhead/score_program.h) reads, in structs without functions, and its kernel functions.
#pragma once

#include <cstdint>

#include "polyhead/score_op.h"
#include "polyhead/score_rule.h"

namespace polyhead::cpu {

// What the number in a register depends on. `tile`: one number for a tile. `row`: one for each row. `key`: one for each key. `distance`: one for each key - query
// (without the offset of the diagonal), so that a tile has rows + keys - 1 numbers. `pair`: one for each pair.
enum class ScoreKind : std::uint8_t { tile, row, key, distance, pair };

struct ScoreStep;

// Steps that follow each other and that one function computes, if a caller has provided one (provide_score_run).
struct ScoreRunSteps {
  int steps, input_count, output_count;
  const std::int32_t *inputs, *outputs;  // registers
  ScoreRunFunction functions[2];         // for float and double; nullptr: the interpreter computes the steps
};

struct ScoreStep {
  std::uint8_t op;               // ScoreOp
  ScoreKind kind;                // of the register `to`
  std::int32_t to, a, b, c, d;   // indices of registers: `to` is written, the others are read
  double value;
  int distance = 0;              // 1: the step computes key - query; -1: query - key; 0: it computes `op`
  const ScoreRunSteps* run = nullptr;  // the run that begins with this step, if any
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

// Bytes of a register for a range of keys: a power of two between these, which a program chooses so that its registers fit in the first-level cache.
inline constexpr std::int32_t kLeastScoreRangeBytes = 512, kMostScoreRangeBytes = 2048;
inline constexpr int kMostScoreRows = 16;  // a register of the kind `distance` serves at most this many rows at a time

struct ScoreSteps {
  // Steps of the kinds tile, key, distance, and row and pair.
  const ScoreStep *per_tile, *per_range, *per_distance, *per_row;
  int per_tile_count, per_range_count, per_distance_count, per_row_count;
  int registers;
  const ScoreKind* kinds;       // per register
  const std::int32_t* places;   // per register: byte offset in the scratch memory, a multiple of kScoreRunBytes; -1: not in memory
  std::int64_t bytes;           // size of the scratch memory
  std::int32_t range_bytes;     // bytes of a range of keys
  std::int32_t score;           // register of the old score; -1: no step reads it
  std::int32_t result;          // register of the new score; in the backward pass, register of the derivative of the new score by the old score
  bool result_is_one;           // backward: the derivative is 1
  const ScoreSum* sums;
  int sum_count;
};

// Returns the bytes of a register, a multiple of kScoreRunBytes. A register of kind key or pair has a number for each key of a range. A register of kind
// distance has kMostScoreRows more numbers. A register of any other kind is one vector.
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
  static const ScoreProgramKernels* const of_sets[];  // in the order of kernel_sets()
  void (*forward)(const ScoreSteps& steps, const ScoreTile& tile, void* scratch);
  void (*backward)(const ScoreSteps& steps, const ScoreTile& tile, const void* before, double* sums, void* scratch);
};

}  // namespace polyhead::cpu
