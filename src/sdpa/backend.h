// Backend: a set of functions that compute the operations of attention, and a function that says which problems the backend declines. backend_rows.h lists all
// backends.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "problem/problem.h"

namespace polyhead {

enum class Operation : std::uint8_t { forward, backward, jvp, backward_backward, maps };

struct Backend {
  std::string_view name;
  // Returns the reason why the backend cannot serve the problem, or an empty text if it can.
  std::string (*declines)(const Problem& problem, Operation operation);
  void (*forward)(const ForwardProblem& problem);
  void (*backward)(const BackwardProblem& problem);
  void (*jvp)(const JvpProblem& problem);
  void (*backward_backward)(const BackwardBackwardProblem& problem);
  // Computes the map rows of the given queries of head (b, n).
  void (*map_rows)(const MapsProblem& problem, std::int64_t b, std::int64_t n, std::span<const std::int64_t> queries, const RowConsumer& row);
  // Writes the map row of queries[i] to out (b, n, i, :). Called only if out and q are both float64 or both not float64. If it is nullptr, callers use
  // map_rows.
  void (*write_maps)(const MapsProblem& problem, std::int64_t b, std::int64_t n, std::span<const std::int64_t> queries, TensorView out);
  // Returns the entropy -sum m log m of m = (p + q) / 2. p and q are arrays of float64 if `dtype` is float64, else of float32. `count` is a multiple of 16.
  double (*entropy_of_mean)(DType dtype, const void* p, const void* q, std::int64_t count);
  // Returns the lines "name: value" that explain() adds for a forward pass. nullptr: no lines.
  std::string (*facts)(const ForwardProblem& problem);
};

std::string_view name_of(Operation operation);

// Returns `forced`, the backend that the caller chose. Error if this backend declines the problem.
const Backend& require_serves(const Backend& forced, const Problem& problem, Operation operation);
[[noreturn]] void fail_unserved();

// Returns `forced` if it is not nullptr (Error if this backend declines the problem), else the first backend in the list that serves the problem. A program
// that calls this function links every operation of every backend. Code that runs a single pass therefore calls choose_pass() of backend_rows.h instead.
[[gnu::visibility("default")]] const Backend& select_backend(const Problem& problem, Operation operation, const Backend* forced);

}  // namespace polyhead
