#include "polyhead/score_program.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "bind.h"
#include "gil.h"
#include "gradients.h"
#include "options.h"
#include "shapes.h"

namespace polyhead::python {
namespace {

// A score program, and the arrays that the program reads.
struct Program {
  Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  std::vector<Array> tables;
  std::optional<ScoreProgram> program;
};

// Reads instructions, each a tuple (op, table, a, b, c, d, value), and gradients, each a tuple (load, derivative, first, strides).
void make_program(Program* self, nb::handle instructions, nb::handle tables, std::int32_t result, std::int32_t slope, nb::handle gradients, std::int64_t gradient_count) {
  new (self) Program();
  ScoreProgramCode code{.instructions = {}, .tables = {}, .result = result, .slope = slope, .gradients = {}, .gradient_count = gradient_count};
  for (nb::handle table : nb::cast<nb::list>(tables)) code.tables.push_back({self->tables.emplace_back(Array::required(table, "a captured tensor")).view()});
  for (nb::handle row : nb::cast<nb::list>(instructions)) {
    const auto number = [&](int i) { return nb::cast<std::int32_t>(row[i]); };
    code.instructions.push_back({.op = static_cast<ScoreOp>(number(0)), .table = number(1), .a = number(2), .b = number(3), .c = number(4), .d = number(5), .value = nb::cast<double>(row[6])});
  }
  for (nb::handle row : nb::cast<nb::list>(gradients)) {
    ScoreGradient gradient{.load = nb::cast<std::int32_t>(row[0]), .derivative = nb::cast<std::int32_t>(row[1]), .first = nb::cast<std::int64_t>(row[2])};
    const nb::handle strides = row[3];
    for (std::size_t axis = 0; axis < nb::len(strides); ++axis) gradient.strides[axis] = nb::cast<std::int64_t>(strides[axis]);
    code.gradients.push_back(gradient);
  }
  self->program.emplace(std::move(code));
}

// Returns (out, lse, attention weights or None). out_given: a tensor for out, or None.
Tuple<nb::any, nb::any, nb::any> forward(const Program& program, nb::handle q_given, nb::handle k_given, nb::handle v_given, nb::handle options, bool want_weights,
                                      nb::handle out_given) {
  SdpaCall call("attention", options);
  const ConstTensorView q = call.required(q_given, "q"), k = call.required(k_given, "k"), v = call.required(v_given, "v");
  call.sdpa.score_rule = program.program->rule();
  const Result out("out", out_given, true, q_given, out_shape(q, v), q.dtype(), q), lse("lse", nb::none(), true, q_given, without_last(q), lse_dtype(q.dtype()));
  const Result weights("attention_weights", nb::none(), want_weights, q_given, with_last(q, k.rank() > 1 ? k.extent(-2) : 0), q.dtype());
  without_gil([&] { sdpa_forward({.q = q, .k = k, .v = v, .out = out.view(), .lse = lse.view(), .attention_weights = weights.view()}, call.sdpa); });
  return nb::make_tuple(out.object, lse.object, weights.object);
}

// Returns the fields of polyhead.Gradients, and last the sums of the program's gradients; None for those that are not wanted.
Gradients backward(const Program& program, nb::handle q_given, nb::handle k_given, nb::handle v_given, nb::handle out, nb::handle lse, nb::handle d_out, nb::handle options,
                   const Wanted& wanted, bool want_sums) {
  SdpaCall call("attention", options);
  const ConstTensorView q = call.required(q_given, "q"), k = call.required(k_given, "k"), v = call.required(v_given, "v");
  call.sdpa.score_rule = program.program->rule();
  const GradientResults gradients({.q = q, .k = k, .v = v, .out = {}}, call.sdpa, q_given, wanted);
  const Result sums("d_score_rule", nb::none(), want_sums, q_given, Shape{q.rank() > 2 ? q.extent(-3) : 0, call.sdpa.score_rule.gradient_count}, DType::f64);
  SdpaBackward tensors{.q = q, .k = k, .v = v, .out = call.required(out, "out"), .lse = call.required(lse, "lse"), .d_out = call.required(d_out, "d_out"),
                       .d_q = {}, .d_k = {}, .d_v = {}, .d_score_rule = sums.view()};
  gradients.place(tensors);
  without_gil([&] { sdpa_backward(tensors, call.sdpa); });
  return gradients.objects({sums.object});
}

std::vector<std::string> op_names(bool of_runs) {
  std::vector<std::string> names;
  for (const ScoreOpInfo& info : kScoreOpInfo) {
    if (!of_runs || info.in_runs) names.emplace_back(info.name);
  }
  return names;
}

}  // namespace

void bind_score_program(nb::module_& m) {
  m.def("score_ops", [] { return op_names(false); });
  m.def("score_run_ops", [] { return op_names(true); });
  m.attr("most_score_instructions") = kMostScoreInstructions;
  m.attr("most_score_run_functions") = kMostScoreRunFunctions;
  nb::class_<Program>(m, "ScoreProgram")
      .def("__init__", &make_program, any("instructions"), any("tables"), nb::arg("result"), nb::arg("slope"), any("gradients"), nb::arg("gradient_count"))
      .def("masks", [](const Program& self) { return self.program->rule().masks != nullptr; })
      .def("runs", [](const Program& self, bool float64) { return self.program->runs(float64); }, nb::arg("float64"))
      .def("interpreted_runs", [](const Program& self, bool float64) { return self.program->interpreted_runs(float64); }, nb::arg("float64"));
  m.def("provide_score_run", [](const std::string& text, std::uintptr_t address) { return provide_score_run(text, reinterpret_cast<ScoreRunFunction>(address)); }, nb::arg("text"), nb::arg("address"));
  m.def("score_forward", &forward, nb::arg("program"), any("q"), any("k"), any("v"), any("options"), nb::arg("want_weights"), any("out"));
  m.def("score_backward", &backward, nb::arg("program"), any("q"), any("k"), any("v"), any("out"), any("lse"), any("d_out"), any("options"), nb::arg("wanted"),
        nb::arg("want_sums"));
}

}  // namespace polyhead::python
