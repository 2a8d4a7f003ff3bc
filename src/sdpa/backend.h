// A backend: what it declines, and its three operations. backends.cc lists them once.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "problem/problem.h"

namespace polyhead {

enum class Operation : std::uint8_t { forward, backward, maps };

struct Backend {
  std::string_view name;
  // Why the backend cannot serve the problem; empty: it can.
  std::string (*declines)(const Problem& problem, Operation operation);
  void (*forward)(const ForwardProblem& problem);
  void (*backward)(const BackwardProblem& problem);
  // The maps of the given queries of head (b, n).
  void (*map_rows)(const MapsProblem& problem, std::int64_t b, std::int64_t n, std::span<const std::int64_t> queries, const RowConsumer& row);
  // out (b, n, i, :) = the map of queries[i], where arithmetic on the dtypes of out and problem is the same; nullptr: map_rows has to do.
  void (*write_maps)(const MapsProblem& problem, std::int64_t b, std::int64_t n, std::span<const std::int64_t> queries, TensorView out);
  // What explain() adds about a forward pass, "name: value" lines; nullptr: nothing.
  std::string (*facts)(const ForwardProblem& problem);
};

// The forced backend (Error when it declines), else the first in the list that serves the problem.
const Backend& select_backend(const Problem& problem, Operation operation, const Backend* forced);

}  // namespace polyhead
