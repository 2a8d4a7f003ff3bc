// A score rule (score_rule.h) that is given as a list of instructions; the kernels interpret them with vector instructions. It serves formulas that are known
// only at run time, such as functions in Python. A register holds one number for each pair; instruction i writes register i and reads registers of earlier
// instructions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "polyhead/score_op.h"
#include "polyhead/score_rule.h"
#include "polyhead/tensor_view.h"

#pragma GCC visibility push(default)
namespace polyhead {

struct ScoreInstruction {
  ScoreOp op = ScoreOp::constant;
  std::int32_t table = -1;                   // index of the table that `load` reads
  std::int32_t a = -1, b = -1, c = -1, d = -1;  // the registers that the instruction reads
  double value = 0;
};

// A table of numbers that `load` reads, with at most 4 dimensions. The numbers are not copied. Negative indices count from the end, as in NumPy; an index
// outside of a dimension gives NaN.
struct ScoreTable {
  ConstTensorView values;  // the numbers, float32 or float64
};

// How to compute the gradient of a table's elements. Register `derivative` holds d(new score) / d(element that instruction `load` reads). The backward pass
// multiplies it by the gradient of the new score, and adds the product to sums[first + sum of index x stride over the dimensions of the load] of the head.
struct ScoreGradient {
  std::int32_t load = -1, derivative = -1;
  std::int64_t first = 0;
  std::int64_t strides[4] = {0, 0, 0, 0};
};

struct ScoreProgramCode {
  std::vector<ScoreInstruction> instructions;
  std::vector<ScoreTable> tables;
  std::int32_t result = -1;                  // the register of the new score
  std::int32_t slope = -1;                   // the register of the derivative of the new score by the old score; -1: the rule has no backward pass
  std::vector<ScoreGradient> gradients;
  std::int64_t gradient_count = 0;           // number of sums of each head that receive gradients
};

// A score program. The constructor checks the instructions. The tables, and the ScoreProgram or a copy of it, must live as long as the ScoreRule that rule()
// returns.
class ScoreProgram {
 public:
  explicit ScoreProgram(ScoreProgramCode code);
  ScoreRule rule() const;
  // runs() returns the texts of the program's runs for scores in float64 or float32; interpreted_runs() returns only those of runs that have no function.
  std::vector<std::string> runs(bool float64) const;
  std::vector<std::string> interpreted_runs(bool float64) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
  std::int64_t gradient_count_;
  bool differentiable_;
};

// Provides a compiled function for a run of a score program. A run is a list of instructions of arithmetic, comparison and choice that follow each other
// without a call between them. The function must compute the same bits as the interpreter: each operation rounds once, without fused multiply-adds. Programs
// that are constructed afterwards call the function; a run without a function is interpreted. `text` describes the run. "float32 vvs; multiply 0 2; add 3 1; 4"
// has the type, the inputs (v: a number for each key, s: one number), the instructions with their operands, separated by ';', and the outputs. Inputs, and
// after them instructions, are counted from 0. A constant is an input, so programs that differ in constants share functions.
//
// Functions stay for the life of the process. provide_score_run() returns false if there are already kMostScoreRunFunctions functions, or if the text already
// has a function. It throws an Error if `function` is nullptr. Any thread may call it at any time.
inline constexpr int kMostScoreRunFunctions = 1024;
bool provide_score_run(std::string_view text, ScoreRunFunction function);

}  // namespace polyhead
#pragma GCC visibility pop
