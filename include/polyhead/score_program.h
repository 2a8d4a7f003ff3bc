// A score rule (score_rule.h) as a list of instructions, which the kernels interpret with vector instructions. It serves formulas that are known only at run
// time, such as functions in Python. A register holds one number for each pair; instruction i writes register i and reads registers of earlier instructions.
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
  std::int32_t a = -1, b = -1, c = -1, d = -1;  // registers
  double value = 0;
};

// A table of numbers that `load` reads, with at most 4 dimensions. The numbers are not copied. Negative indices count from the end, as in NumPy; an index
// outside of a dimension gives NaN.
struct ScoreTable {
  ConstTensorView values;  // float32 or float64
};

// The gradient of a table element: register `derivative` holds d(new score) / d(element that instruction `load` reads). The backward pass multiplies the
// register by the gradient of the new score and adds the product to sums[first + sum of index x stride over the load's dimensions] of the head.
struct ScoreGradient {
  std::int32_t load = -1, derivative = -1;
  std::int64_t first = 0;
  std::int64_t strides[4] = {0, 0, 0, 0};
};

struct ScoreProgramCode {
  std::vector<ScoreInstruction> instructions;
  std::vector<ScoreTable> tables;
  std::int32_t result = -1;                  // register of the new score
  std::int32_t slope = -1;                   // register of the derivative of the new score by the old score; -1: no backward pass
  std::vector<ScoreGradient> gradients;
  std::int64_t gradient_count = 0;           // number of sums of each head
};

// The constructor checks the instructions. The tables, and the ScoreProgram or a copy of it, must live as long as the ScoreRule made from it.
class ScoreProgram {
 public:
  explicit ScoreProgram(ScoreProgramCode code);
  ScoreRule rule() const;
  // Return the texts of the program's runs for scores in float64 or float32; interpreted_runs() only those of runs that have no function.
  std::vector<std::string> runs(bool float64) const;
  std::vector<std::string> interpreted_runs(bool float64) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
  std::int64_t gradient_count_;
  bool differentiable_;
};

// A run is a list of instructions of arithmetic, comparison and choice, computed for each pair one after the other without a call between them. A caller with a
// compiler may provide a function for the run, which must compute the same bits: each operation rounds once, without fused multiply-adds. Programs that are
// constructed afterwards call the function; without one the run is interpreted. The text describes the run: "float32 vvs; multiply 0 2; add 3 1; 4" has the type,
// the inputs (v: a number for each key, s: one number), instructions separated by ';' with their operands, and the outputs. Inputs and then instructions are
// counted from 0. A constant is an input, so programs that differ in constants share functions.
//
// Functions stay for the life of the process: at most kMostScoreRunFunctions, then provide_score_run returns false. provide_score_run also returns false for a text
// that has a function. Throws Error if `function` is nullptr. Any thread may call it at any time.
inline constexpr int kMostScoreRunFunctions = 1024;
bool provide_score_run(std::string_view text, ScoreRunFunction function);

}  // namespace polyhead
#pragma GCC visibility pop
