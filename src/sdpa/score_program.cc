#include "polyhead/score_program.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/text.h"
#include "cpu/score_program/kernels.h"
#include "cpu/select.h"
#include "sdpa/score_bounds.h"

namespace polyhead {
namespace {

// Returns how many of the registers a, b, c, d an instruction reads. A load reads one for each dimension of its table.
int operands_of(const ScoreInstruction& instruction, const std::vector<ScoreTable>& tables) {
  if (instruction.op == ScoreOp::load) return tables[static_cast<std::size_t>(instruction.table)].values.rank();
  return kScoreOpInfo[static_cast<int>(instruction.op)].operands;
}

constexpr int kUnknown = 2;

// Returns the amount by which the instruction's register changes from one key to the next: 0, 1, -1, or kUnknown.
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

// Returns scratch memory of the calling thread. It is valid until the next call on this thread, which returns the same memory.
void* scratch_of_thread(std::int64_t bytes) {
  constexpr std::size_t kAlignment = 64;
  thread_local std::vector<std::byte> memory;
  if (memory.size() < static_cast<std::size_t>(bytes) + kAlignment) memory.resize(static_cast<std::size_t>(bytes) + kAlignment);
  void* start = memory.data();
  std::size_t space = memory.size();
  return std::align(kAlignment, static_cast<std::size_t>(bytes), start, space);
}

// The functions that provide_score_run() received, as a linked list. Nodes are added and never removed, so the list can be read without a lock, even after a
// fork.
struct ProvidedRun {
  std::string text;
  ScoreRunFunction function;
  const ProvidedRun* next;
  int number;  // position in the list, counted from 1
};
constinit std::atomic<const ProvidedRun*> provided_runs = nullptr;

ScoreRunFunction provided_function(std::string_view text) {
  for (const ProvidedRun* run = provided_runs.load(std::memory_order_acquire); run != nullptr; run = run->next) {
    if (run->text == text) return run->function;
  }
  return nullptr;
}

using Registers = std::vector<std::int32_t>;

// A step, and the registers that the step reads.
struct PlannedStep {
  cpu::ScoreStep step;
  Registers operands;
};

struct Run {
  std::string instructions;  // text of the run, without the type at its beginning
  Registers inputs, outputs;
  int steps = 0;
  std::string text(bool float64) const { return (float64 ? "float64 " : "float32 ") + instructions; }
};

// The steps of the forward or the backward pass, in the order in which they are computed.
struct Pass {
  std::vector<cpu::ScoreStep> per_tile, per_range, per_distance, per_row;
  std::vector<Run> runs;
  std::vector<cpu::ScoreRunSteps> run_steps;  // one element for each element of `runs`
  std::vector<std::int32_t> places;
  cpu::ScoreSteps steps{};
};

// Describes the steps [first, last) as a run. `outputs` are the registers of these steps that are read outside of the run.
Run run_of(const std::vector<PlannedStep>& steps, std::size_t first, std::size_t last, Registers outputs, const cpu::ScoreKind* kinds) {
  Run run;
  run.steps = static_cast<int>(last - first);
  const auto written_by = [&](std::int32_t number) {
    for (std::size_t i = first; i < last; ++i) {
      if (steps[i].step.to == number) return static_cast<int>(i - first);
    }
    return -1;
  };
  for (std::size_t i = first; i < last; ++i) {
    for (const std::int32_t number : steps[i].operands) {
      if (written_by(number) < 0 && std::find(run.inputs.begin(), run.inputs.end(), number) == run.inputs.end()) run.inputs.push_back(number);
    }
  }
  const auto name_of = [&](std::int32_t number) {
    const int step = written_by(number);
    const auto input = std::find(run.inputs.begin(), run.inputs.end(), number) - run.inputs.begin();
    return cat(' ', step < 0 ? static_cast<std::int64_t>(input) : static_cast<std::int64_t>(run.inputs.size()) + step);
  };
  for (const std::int32_t number : run.inputs) run.instructions += kinds[number] >= cpu::ScoreKind::key ? 'v' : 's';
  for (std::size_t i = first; i < last; ++i) {
    run.instructions += std::string("; ") + kScoreOpInfo[steps[i].step.op].name;
    for (const std::int32_t number : steps[i].operands) run.instructions += name_of(number);
  }
  run.instructions += ";";
  run.outputs = std::move(outputs);
  for (const std::int32_t number : run.outputs) run.instructions += name_of(number);
  return run;
}

// Orders the steps of the rows: first the steps that cannot be in runs and whose operands exist, then the steps of the next run, and so on. `roots` are the
// registers that are read after the last step.
void plan_rows(std::vector<PlannedStep> steps, const Registers& roots, const cpu::ScoreKind* kinds, Pass& pass) {
  std::vector<PlannedStep> ordered;
  std::vector<std::pair<std::size_t, std::size_t>> runs;
  const auto may_run = [](const PlannedStep& step) { return step.step.kind == cpu::ScoreKind::pair && kScoreOpInfo[step.step.op].in_runs; };
  const auto is_ready = [&](const PlannedStep& step) {
    return std::none_of(step.operands.begin(), step.operands.end(), [&](std::int32_t number) {
      return std::any_of(steps.begin(), steps.end(), [&](const PlannedStep& other) { return other.step.to == number; });
    });
  };
  while (!steps.empty()) {
    for (const bool in_run : {false, true}) {
      const std::size_t first = ordered.size();
      // Operands have smaller register numbers, so one pass over the steps finds all steps that are ready or become ready.
      for (auto next = steps.begin(); next != steps.end();) {
        if (may_run(*next) == in_run && is_ready(*next)) {
          ordered.push_back(*next), next = steps.erase(next);
        } else {
          ++next;
        }
      }
      if (in_run && ordered.size() > first + 1) runs.emplace_back(first, ordered.size());
    }
  }
  for (const auto& [first, last] : runs) {
    Registers outputs;
    for (std::size_t i = first; i < last; ++i) {
      const std::int32_t number = ordered[i].step.to;
      bool is_read = std::find(roots.begin(), roots.end(), number) != roots.end();
      for (std::size_t j = last; j < ordered.size() && !is_read; ++j) is_read = std::find(ordered[j].operands.begin(), ordered[j].operands.end(), number) != ordered[j].operands.end();
      if (is_read) outputs.push_back(number);
    }
    pass.runs.push_back(run_of(ordered, first, last, std::move(outputs), kinds));
  }
  for (const Run& run : pass.runs) {
    pass.run_steps.push_back({.steps = run.steps, .input_count = static_cast<int>(run.inputs.size()), .output_count = static_cast<int>(run.outputs.size()), .inputs = run.inputs.data(),
                              .outputs = run.outputs.data(), .functions = {provided_function(run.text(false)), provided_function(run.text(true))}});
  }
  for (std::size_t i = 0; i < runs.size(); ++i) ordered[runs[i].first].step.run = &pass.run_steps[i];
  for (const PlannedStep& step : ordered) pass.per_row.push_back(step.step);
}

}  // namespace

struct ScoreProgram::Compiled {
  std::vector<cpu::ScoreSum> sums;
  std::vector<cpu::ScoreKind> kinds;
  Pass forward, backward;
  std::optional<ScoreBounds> result, slope;  // absent: the passes gain nothing by them
};

constexpr auto kIsMinusInfinity = [](const ScoreInstruction& x) { return x.op == ScoreOp::constant && x.value == -std::numeric_limits<double>::infinity(); };
constexpr auto kIsScore = [](const ScoreInstruction& x) { return x.op == ScoreOp::score; };
constexpr auto kIsOne = [](const ScoreInstruction& x) { return x.op == ScoreOp::constant && x.value == 1; };

// Returns whether f is true for the instruction that all pairs of the tile choose.
template <class F>
bool chooses(const std::optional<ScoreBounds>& bounds, const ScoreTile& tile, const F& f) {
  const ScoreInstruction* const chosen = bounds ? bounds->chosen(tile) : nullptr;
  return chosen != nullptr && f(*chosen);
}

ScoreProgram::ScoreProgram(ScoreProgramCode code) : gradient_count_(code.gradient_count), differentiable_(code.slope >= 0) {
  const auto count = static_cast<std::int32_t>(code.instructions.size());
  require(count > 0 && count <= kMostScoreInstructions, "ScoreProgram: ", count, " instructions are given; at least 1 and at most ", kMostScoreInstructions, " are allowed");
  require(0 <= code.result && code.result < count && code.slope < count, "ScoreProgram: the result or the slope is not the index of an instruction");
  require(code.gradient_count >= 0, "ScoreProgram: gradient_count is ", code.gradient_count, "; it must not be negative");
  for (const ScoreTable& table : code.tables) {
    const ConstTensorView& values = table.values;
    require(values && (values.dtype() == DType::f32 || values.dtype() == DType::f64) && values.rank() <= 4, "ScoreProgram: a table is ", values.dtype(), " ", values.shape(),
            "; it must be float32 or float64 of at most 4 dimensions");
    for (int axis = 0; axis < values.rank(); ++axis)
      require(values.extent(axis) <= (std::int64_t{1} << 24), "ScoreProgram: a table is ", values.shape(), "; indices are exact up to 2^24");
  }
  auto compiled = std::make_shared<Compiled>();
  std::vector<cpu::ScoreKind>& kinds = compiled->kinds;
  // For each register: by how much it changes from one key to the next (0, 1, -1, or kUnknown).
  std::vector<int> units;
  enum : std::uint8_t { kQuery = 1, kKey = 2, kScore = 4, kDistance = 8 };
  std::vector<std::uint8_t> depends;  // for each register: the inputs on which it depends, as bits kQuery, kKey, ...
  std::vector<PlannedStep> steps;
  for (const ScoreInstruction& instruction : code.instructions) {
    const auto number = static_cast<std::int32_t>(steps.size());
    require(static_cast<int>(instruction.op) < kScoreOps, "ScoreProgram: instruction ", number, " has an unknown operation");
    const bool loads = instruction.op == ScoreOp::load;
    require(!loads || (instruction.table >= 0 && static_cast<std::size_t>(instruction.table) < code.tables.size()), "ScoreProgram: instruction ", number, " loads from no table");
    cpu::ScoreStep step{.op = static_cast<std::uint8_t>(instruction.op), .kind = {}, .to = number, .a = instruction.a, .b = instruction.b, .c = instruction.c, .d = instruction.d,
                        .value = instruction.value};
    std::uint8_t on = instruction.op == ScoreOp::score ? kScore : instruction.op == ScoreOp::query ? kQuery : instruction.op == ScoreOp::key ? kKey : 0;
    const std::int32_t operands[] = {instruction.a, instruction.b, instruction.c, instruction.d};
    const int operand_count = operands_of(instruction, code.tables);
    for (int i = 0; i < operand_count; ++i) {
      require(operands[i] >= 0 && operands[i] < number, "ScoreProgram: instruction ", number, " reads register ", operands[i], "; an instruction may read registers of earlier instructions");
      on |= depends[static_cast<std::size_t>(operands[i])];
    }
    if (loads) {
      const ConstTensorView& values = code.tables[static_cast<std::size_t>(instruction.table)].values;
      step.table = values.data(), step.float64 = values.dtype() == DType::f64, step.rank = values.rank();
      for (int axis = 0; axis < values.rank(); ++axis) step.extents[axis] = values.extent(axis), step.strides[axis] = values.stride(axis);
    }
    units.push_back(unit_of(instruction, (on & ~kQuery) != 0, units));
    for (int axis = 0, varying = 0; axis < step.rank; ++axis) {
      const int unit = units[static_cast<std::size_t>(operands[axis])];
      if (unit == 0) continue;
      const bool usable = ++varying == 1 && unit != kUnknown;
      step.unit_axis = usable ? axis : -1, step.unit = usable ? unit : 0;
    }
    PlannedStep planned{.step = step, .operands = Registers(operands, operands + operand_count)};
    if (instruction.op == ScoreOp::subtract) {
      const auto is = [&](std::int32_t operand, ScoreOp which) { return code.instructions[static_cast<std::size_t>(operand)].op == which; };
      const int distance = is(instruction.a, ScoreOp::key) && is(instruction.b, ScoreOp::query) ? 1 : is(instruction.a, ScoreOp::query) && is(instruction.b, ScoreOp::key) ? -1 : 0;
      if (distance != 0) planned.step.distance = distance, planned.operands.clear(), on = kDistance;
    }
    using enum cpu::ScoreKind;
    planned.step.kind = on == 0 ? tile : on == kQuery ? row : on == kKey ? key : on == kDistance ? cpu::ScoreKind::distance : pair;
    kinds.push_back(planned.step.kind), depends.push_back(on), steps.push_back(std::move(planned));
  }
  // Plans the steps that are needed to compute the registers `roots`. The last of `roots` is the result.
  const auto plan = [&](const Registers& roots, Pass& pass) {
    std::vector<bool> needed(steps.size());
    for (const std::int32_t root : roots) needed[static_cast<std::size_t>(root)] = true;
    for (auto i = steps.size(); i-- > 0;) {
      if (!needed[i]) continue;
      for (const std::int32_t operand : steps[i].operands) needed[static_cast<std::size_t>(operand)] = true;
    }
    // Longer ranges of keys mean fewer selections of an operation. The registers of all steps together take at most 16 KiB, unless the least range takes more.
    std::int64_t arrays = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) arrays += needed[i] && kinds[i] >= cpu::ScoreKind::key ? 1 : 0;
    pass.steps.range_bytes = cpu::kMostScoreRangeBytes;
    while (pass.steps.range_bytes > cpu::kLeastScoreRangeBytes && arrays * pass.steps.range_bytes > (std::int64_t{16} << 10)) pass.steps.range_bytes /= 2;
    std::vector<PlannedStep> per_row;
    pass.places.assign(steps.size(), -1);
    pass.steps.score = -1;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (!needed[i]) continue;
      const cpu::ScoreStep& step = steps[i].step;
      if (static_cast<ScoreOp>(step.op) == ScoreOp::score) {
        pass.steps.score = step.to;
        continue;
      }
      pass.places[i] = static_cast<std::int32_t>(pass.steps.bytes), pass.steps.bytes += cpu::score_register_bytes(step.kind, pass.steps.range_bytes);
      switch (step.kind) {
        case cpu::ScoreKind::tile: pass.per_tile.push_back(step); break;
        case cpu::ScoreKind::key: pass.per_range.push_back(step); break;
        case cpu::ScoreKind::distance: pass.per_distance.push_back(step); break;
        case cpu::ScoreKind::row: case cpu::ScoreKind::pair: per_row.push_back(steps[i]); break;
      }
    }
    plan_rows(std::move(per_row), roots, kinds.data(), pass);
    const auto size_of = [](const auto& list) { return static_cast<int>(list.size()); };
    cpu::ScoreSteps& all = pass.steps;
    all.per_tile = pass.per_tile.data(), all.per_range = pass.per_range.data(), all.per_distance = pass.per_distance.data(), all.per_row = pass.per_row.data();
    all.per_tile_count = size_of(pass.per_tile), all.per_range_count = size_of(pass.per_range), all.per_distance_count = size_of(pass.per_distance), all.per_row_count = size_of(pass.per_row);
    all.registers = static_cast<int>(steps.size()), all.kinds = kinds.data(), all.places = pass.places.data(), all.result = roots.back();
  };
  plan({code.result}, compiled->forward);
  if (differentiable_) {
    Registers roots;
    for (const ScoreGradient& gradient : code.gradients) {
      require(gradient.load >= 0 && gradient.load < count && code.instructions[static_cast<std::size_t>(gradient.load)].op == ScoreOp::load && gradient.derivative >= 0 && gradient.derivative < count,
              "ScoreProgram: the load of a gradient is not a load instruction, or its derivative is not the index of an instruction");
      // The caller chooses the strides, so `last` may need more than 64 bits.
      __extension__ using Wide = __int128;
      Wide last = gradient.first;
      const cpu::ScoreStep& load = steps[static_cast<std::size_t>(gradient.load)].step;
      for (int axis = 0; axis < load.rank; ++axis) {
        require(gradient.strides[axis] >= 0, "ScoreProgram: a gradient has a negative stride");
        last += static_cast<Wide>(std::max<std::int64_t>(load.extents[axis] - 1, 0)) * gradient.strides[axis];
      }
      require(gradient.first >= 0 && last < code.gradient_count, "ScoreProgram: a gradient reaches beyond its ", code.gradient_count, " sums");
      roots.push_back(gradient.load), roots.push_back(gradient.derivative);
    }
    roots.push_back(code.slope);
    plan(roots, compiled->backward);
    const ScoreInstruction& slope = code.instructions[static_cast<std::size_t>(code.slope)];
    compiled->backward.steps.result_is_one = slope.op == ScoreOp::constant && slope.value == 1;
    for (const ScoreGradient& gradient : code.gradients) {
      const cpu::ScoreStep* found = nullptr;
      const Pass& pass = compiled->backward;
      for (const auto* list : {&pass.per_tile, &pass.per_range, &pass.per_distance, &pass.per_row}) {
        for (const cpu::ScoreStep& step : *list) {
          if (step.to == gradient.load) found = &step;
        }
      }
      cpu::ScoreSum sum{.load = found, .derivative = gradient.derivative, .first = gradient.first, .strides = {}};
      std::copy(std::begin(gradient.strides), std::end(gradient.strides), std::begin(sum.strides));
      compiled->sums.push_back(sum);
    }
    compiled->backward.steps.sums = compiled->sums.data(), compiled->backward.steps.sum_count = static_cast<int>(compiled->sums.size());
  }
  if (ScoreBounds result(code, code.result); result.may_choose(kIsMinusInfinity) || result.may_choose(kIsScore)) compiled->result = std::move(result);
  if (differentiable_ && code.gradients.empty()) {
    if (ScoreBounds slope(code, code.slope); slope.may_choose(kIsOne)) compiled->slope = std::move(slope);
  }
  compiled_ = std::move(compiled);
}

ScoreRule ScoreProgram::rule() const {
  ScoreRule rule;
  rule.data = compiled_.get(), rule.gradient_count = gradient_count_;
  rule.forward = [](const ScoreTile& tile, const void* data) {
    const Compiled& compiled = *static_cast<const Compiled*>(data);
    if (chooses(compiled.result, tile, kIsScore)) return;  // scores stay as they are
    const cpu::ScoreSteps& steps = compiled.forward.steps;
    cpu::current_kernels_of<cpu::ScoreProgramKernels>().forward(steps, tile, scratch_of_thread(steps.bytes));
  };
  if (const std::optional<ScoreBounds>& result = compiled_->result; result && result->may_choose(kIsMinusInfinity)) {
    rule.masks = [](const ScoreTile& tile, const void* data) { return chooses(static_cast<const Compiled*>(data)->result, tile, kIsMinusInfinity); };
    rule.masks_by_batch = result->by_batch(), rule.masks_by_head = result->by_head();
  }
  if (!differentiable_) return rule;
  rule.keeps_zeros = true, rule.reads_before = compiled_->backward.steps.score >= 0;
  rule.backward = [](const ScoreTile& tile, const void* before, double* sums, const void* data) {
    const Compiled& compiled = *static_cast<const Compiled*>(data);
    const cpu::ScoreSteps& steps = compiled.backward.steps;
    if (chooses(compiled.slope, tile, kIsOne)) return;  // gradients stay as they are
    if (steps.result_is_one && (sums == nullptr || steps.sum_count == 0)) return;
    cpu::current_kernels_of<cpu::ScoreProgramKernels>().backward(steps, tile, before, sums, scratch_of_thread(steps.bytes));
  };
  return rule;
}

std::vector<std::string> ScoreProgram::runs(bool float64) const {
  std::vector<std::string> texts;
  for (const Pass* pass : {&compiled_->forward, &compiled_->backward}) {
    for (const Run& run : pass->runs) texts.push_back(run.text(float64));
  }
  return texts;
}

std::vector<std::string> ScoreProgram::interpreted_runs(bool float64) const {
  std::vector<std::string> texts;
  for (const Pass* pass : {&compiled_->forward, &compiled_->backward}) {
    for (std::size_t i = 0; i < pass->runs.size(); ++i) {
      if (pass->run_steps[i].functions[float64 ? 1 : 0] == nullptr) texts.push_back(pass->runs[i].text(float64));
    }
  }
  return texts;
}

bool provide_score_run(std::string_view text, ScoreRunFunction function) {
  require(function != nullptr, "provide_score_run: function is nullptr; it must compute the run");
  std::unique_ptr<ProvidedRun> node(new ProvidedRun{.text = std::string(text), .function = function, .next = provided_runs.load(std::memory_order_acquire), .number = 0});
  do {
    if (provided_function(text) != nullptr) return false;  // checked in each attempt, because another thread may have added this text
    node->number = node->next == nullptr ? 1 : node->next->number + 1;
    if (node->number > kMostScoreRunFunctions) return false;
  } while (!provided_runs.compare_exchange_weak(node->next, node.get(), std::memory_order_acq_rel));
  node.release();  // the node stays for the life of the process
  return true;
}

}  // namespace polyhead
