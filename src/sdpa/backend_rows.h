// The table of backends, one row for each backend. A source file that implements one operation reads only that operation from the rows. So a program links only
// the kernels that it calls.
#pragma once

#include <array>

#include "cpu/sdpa/sdpa.h"
#include "reference/reference.h"
#include "sdpa/backend.h"

namespace polyhead {

struct CpuRow {
  static constexpr std::string_view name = "cpu";
  static std::string declines(const Problem& problem, Operation /*operation*/) { return cpu::declines(problem); }
  static constexpr auto forward = cpu::sdpa_forward;
  static constexpr auto backward = cpu::sdpa_backward;
  static constexpr auto jvp = cpu::sdpa_jvp;
  static constexpr auto backward_backward = cpu::sdpa_backward_backward;
  static constexpr auto map_rows = cpu::map_rows;
  static constexpr auto write_maps = cpu::write_maps;
  static constexpr auto entropy_of_mean = cpu::entropy_of_mean;
  static constexpr auto facts = cpu::facts_of_forward;
};

struct ReferenceRow {
  static constexpr std::string_view name = "reference";
  static std::string declines(const Problem& /*problem*/, Operation /*operation*/) { return {}; }
  static constexpr auto forward = reference::forward;
  static constexpr auto backward = reference::backward;
  static constexpr auto jvp = reference::jvp;
  static constexpr auto backward_backward = reference::backward_backward;
  static constexpr auto map_rows = reference::map_rows;
  static constexpr decltype(Backend::write_maps) write_maps = nullptr;
  static constexpr auto entropy_of_mean = reference::entropy_of_mean;
  static constexpr decltype(Backend::facts) facts = nullptr;
};

// Returns the array [of(row), ...] for all rows, in order of preference. `of` is a lambda whose template parameter is the row. The backend of the last row
// serves every problem.
template <class Of>
constexpr auto of_each_backend(Of of) {
  return std::array{of.template operator()<CpuRow>(), of.template operator()<ReferenceRow>()};
}

// One backend's function for an operation, and the function that says whether the backend declines a problem.
template <class P>
struct Pass {
  std::string (*declines)(const Problem& problem, Operation operation);
  void (*run)(const P& problem);
};

// Returns the function of the forced backend (Error if this backend declines the problem), else the function of the first backend that serves the problem.
template <class P, class Passes>
void (*choose_pass(const P& problem, Operation operation, const Backend* forced, void (*Backend::*of_forced)(const P&), const Passes& passes))(const P&) {
  if (forced) return require_serves(*forced, problem, operation).*of_forced;
  for (const Pass<P>& pass : passes)
    if (pass.declines(problem, operation).empty()) return pass.run;
  fail_unserved();
}

}  // namespace polyhead
