#include "polyhead/score_program.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "core/text.h"
#include "cpu/score_program/kernels.h"
#include "cpu/select.h"

namespace polyhead {
namespace {

// Returns how many of the registers a, b, c, d an instruction reads. A load reads one for each dimension of its table.
int operands_of(const ScoreInstruction& instruction, const std::vector<ScoreTable>& tables) {
  if (instruction.op == ScoreOp::load) return tables[static_cast<std::size_t>(instruction.table)].values.rank();
  return kScoreOpInfo[static_cast<int>(instruction.op)].operands;
}

constexpr int kUnknown = 2;

// Returns by how much the instruction's register changes from one key to the next: 0, 1, -1, or kUnknown.
int unit_of(const ScoreInstruction& instruction, bool varies, const std::vector<int>& units) {
  if (!varies) return 0;
  const auto of = [&](std::int32_t number) { return units[static_cast<std::size_t>(number)]; };
  int unit = kUnknown;
  switch (instruction.op) {
    case ScoreOp::key: unit = 1; break;
    case ScoreOp::negate: unit = of(instruction.a) == kUnknown ? kUnknown : -of(instruction.a); break;
    case ScoreOp::add: unit = of(instruction.a) == kUnknown || of(instruction.b) == kUnknown ? kUnknown : of(instruction.a) + of(instruction.b); break;
    case ScoreOp::subtract: unit = of(instruction.a) == kUnknown || of(instruction.b) == kUnknown ? kUnknown : of(instruction.a) - of(instruction.b); break;
    default: break;
  }
  return unit == 1 || unit == -1 ? unit : kUnknown;
}

// Returns scratch memory of the calling thread. The next call on the thread returns the same memory again.
void* scratch_of_thread(std::int64_t bytes) {
  constexpr std::size_t kAlignment = 64;
  thread_local std::vector<std::byte> memory;
  if (memory.size() < static_cast<std::size_t>(bytes) + kAlignment) memory.resize(static_cast<std::size_t>(bytes) + kAlignment);
  void* start = memory.data();
  std::size_t space = memory.size();
  return std::align(kAlignment, static_cast<std::size_t>(bytes), start, space);
}

}  // namespace

// The instructions in the form that the kernels read. Steps that do not depend on the query run once for a tile, other steps for each row.
struct ScoreProgram::Compiled {
  std::vector<cpu::ScoreStep> forward_once, forward_per_row, backward_once, backward_per_row;
  std::vector<cpu::ScoreSum> sums;
  std::unique_ptr<bool[]> varies;
  cpu::ScoreSteps forward, backward;
};

ScoreProgram::ScoreProgram(ScoreProgramCode code) : gradient_count_(code.gradient_count), differentiable_(code.slope >= 0) {
  const auto count = static_cast<std::int32_t>(code.instructions.size());
  require(count > 0 && count <= kMostInstructions, "ScoreProgram: ", count, " instructions are given; at least 1 and at most ", kMostInstructions, " are allowed");
  require(0 <= code.result && code.result < count && code.slope < count, "ScoreProgram: the result or the slope is no register");
  require(code.gradient_count >= 0, "ScoreProgram: gradient_count is ", code.gradient_count, "; it must not be negative");
  for (const ScoreTable& table : code.tables) {
    const ConstTensorView& values = table.values;
    require(values && (values.dtype() == DType::f32 || values.dtype() == DType::f64) && values.rank() <= 4, "ScoreProgram: a table is ", values.dtype(), " ", values.shape(),
            "; it must be float32 or float64 of at most 4 dimensions");
    for (int axis = 0; axis < values.rank(); ++axis)
      require(values.extent(axis) <= (std::int64_t{1} << 24), "ScoreProgram: a table is ", values.shape(), "; indices are exact up to 2^24");
  }
  auto compiled = std::make_shared<Compiled>();
  compiled->varies = std::make_unique<bool[]>(static_cast<std::size_t>(count));
  std::vector<int> units;  // for each register: by how much it changes from one key to the next; 0, 1, -1, or kUnknown
  std::vector<std::uint8_t> depends;  // for each register, bits: 1 if it depends on the query or the score, 2 if it depends on the key or the score
  std::vector<cpu::ScoreStep> steps;
  for (const ScoreInstruction& instruction : code.instructions) {
    const auto number = static_cast<std::int32_t>(steps.size());
    require(static_cast<int>(instruction.op) < kScoreOps, "ScoreProgram: instruction ", number, " has an unknown operation");
    const bool loads = instruction.op == ScoreOp::load;
    require(!loads || (instruction.table >= 0 && static_cast<std::size_t>(instruction.table) < code.tables.size()), "ScoreProgram: instruction ", number, " loads from no table");
    cpu::ScoreStep step{.op = static_cast<std::uint8_t>(instruction.op), .varies = false, .to = number, .a = instruction.a, .b = instruction.b, .c = instruction.c, .d = instruction.d,
                        .value = instruction.value};
    std::uint8_t on = instruction.op == ScoreOp::score ? 3 : instruction.op == ScoreOp::query ? 1 : instruction.op == ScoreOp::key ? 2 : 0;
    const std::int32_t operands[] = {instruction.a, instruction.b, instruction.c, instruction.d};
    for (int i = 0; i < operands_of(instruction, code.tables); ++i) {
      require(operands[i] >= 0 && operands[i] < number, "ScoreProgram: instruction ", number, " reads register ", operands[i], "; an instruction may read registers of earlier instructions");
      on |= depends[static_cast<std::size_t>(operands[i])];
    }
    if (loads) {
      const ConstTensorView& values = code.tables[static_cast<std::size_t>(instruction.table)].values;
      step.table = values.data(), step.float64 = values.dtype() == DType::f64, step.rank = values.rank();
      for (int axis = 0; axis < values.rank(); ++axis) step.extents[axis] = values.extent(axis), step.strides[axis] = values.stride(axis);
    }
    units.push_back(unit_of(instruction, (on & 2) != 0, units));
    for (int axis = 0, varying = 0; axis < step.rank; ++axis) {
      const int unit = units[static_cast<std::size_t>(operands[axis])];
      if (unit == 0) continue;
      const bool usable = ++varying == 1 && unit != kUnknown;
      step.unit_axis = usable ? axis : -1, step.unit = usable ? unit : 0;
    }
    step.varies = compiled->varies[static_cast<std::size_t>(number)] = (on & 2) != 0;
    depends.push_back(on), steps.push_back(step);
  }
  // Chooses the steps that are needed to compute the registers `roots`.
  const auto choose = [&](std::vector<std::int32_t> roots, std::vector<cpu::ScoreStep>& once, std::vector<cpu::ScoreStep>& per_row) {
    std::vector<bool> needed(steps.size());
    for (const std::int32_t root : roots) needed[static_cast<std::size_t>(root)] = true;
    for (auto i = steps.size(); i-- > 0;) {
      if (!needed[i]) continue;
      const std::int32_t operands[] = {steps[i].a, steps[i].b, steps[i].c, steps[i].d};
      for (int j = 0; j < operands_of(code.instructions[i], code.tables); ++j) needed[static_cast<std::size_t>(operands[j])] = true;
    }
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (needed[i]) ((depends[i] & 1) != 0 ? per_row : once).push_back(steps[i]);
    }
  };
  const auto pass = [&](const std::vector<cpu::ScoreStep>& once, const std::vector<cpu::ScoreStep>& per_row, std::int32_t result) {
    return cpu::ScoreSteps{.once = once.data(), .per_row = per_row.data(), .once_count = static_cast<int>(once.size()), .per_row_count = static_cast<int>(per_row.size()),
                           .registers = count, .varies = compiled->varies.get(), .result = result, .sums = nullptr, .sum_count = 0};
  };
  choose({code.result}, compiled->forward_once, compiled->forward_per_row);
  compiled->forward = pass(compiled->forward_once, compiled->forward_per_row, code.result);
  if (differentiable_) {
    std::vector<std::int32_t> roots{code.slope};
    for (const ScoreGradient& gradient : code.gradients) {
      require(gradient.load >= 0 && gradient.load < count && code.instructions[static_cast<std::size_t>(gradient.load)].op == ScoreOp::load && gradient.derivative >= 0 && gradient.derivative < count,
              "ScoreProgram: a gradient names an instruction that is no load, or its derivative is no register");
      __extension__ using Wide = __int128;  // the caller chooses the strides, so `last` may exceed 64 bits
      Wide last = gradient.first;
      const cpu::ScoreStep& load = steps[static_cast<std::size_t>(gradient.load)];
      for (int axis = 0; axis < load.rank; ++axis) {
        require(gradient.strides[axis] >= 0, "ScoreProgram: a gradient has a negative stride");
        last += static_cast<Wide>(std::max<std::int64_t>(load.extents[axis] - 1, 0)) * gradient.strides[axis];
      }
      require(gradient.first >= 0 && last < code.gradient_count, "ScoreProgram: a gradient reaches beyond its ", code.gradient_count, " sums");
      roots.push_back(gradient.load), roots.push_back(gradient.derivative);
    }
    choose(roots, compiled->backward_once, compiled->backward_per_row);
    compiled->backward = pass(compiled->backward_once, compiled->backward_per_row, code.slope);
    for (const ScoreGradient& gradient : code.gradients) {
      const auto is_load = [&](const cpu::ScoreStep& step) { return step.to == gradient.load; };
      auto* from = &compiled->backward_once;
      auto found = std::find_if(from->begin(), from->end(), is_load);
      if (found == from->end()) from = &compiled->backward_per_row, found = std::find_if(from->begin(), from->end(), is_load);
      cpu::ScoreSum sum{.load = &*found, .derivative = gradient.derivative, .first = gradient.first, .strides = {}};
      std::copy(std::begin(gradient.strides), std::end(gradient.strides), std::begin(sum.strides));
      compiled->sums.push_back(sum);
    }
    compiled->backward.sums = compiled->sums.data(), compiled->backward.sum_count = static_cast<int>(compiled->sums.size());
  }
  compiled_ = std::move(compiled);
}

ScoreRule ScoreProgram::rule() const {
  ScoreRule rule;
  rule.data = compiled_.get(), rule.gradient_count = gradient_count_;
  rule.forward = [](const ScoreTile& tile, const void* data) {
    const auto& kernels = cpu::current_kernels_of<cpu::ScoreProgramKernels>();
    const cpu::ScoreSteps& steps = static_cast<const Compiled*>(data)->forward;
    kernels.forward(steps, tile, scratch_of_thread(kernels.scratch_bytes(steps)));
  };
  if (!differentiable_) return rule;
  rule.backward = [](const ScoreTile& tile, const void* before, double* sums, const void* data) {
    const auto& kernels = cpu::current_kernels_of<cpu::ScoreProgramKernels>();
    const cpu::ScoreSteps& steps = static_cast<const Compiled*>(data)->backward;
    kernels.backward(steps, tile, before, sums, scratch_of_thread(kernels.scratch_bytes(steps)));
  };
  return rule;
}

}  // namespace polyhead
