// Attention by the kernels of this folder. README.md has the mathematics and the figures.
#pragma once

#include <span>
#include <string>

#include "problem/problem.h"

namespace polyhead::cpu {

// Why the kernels cannot serve the problem; empty: they can.
std::string declines(const Problem& problem);

void sdpa_forward(const ForwardProblem& problem);
void sdpa_backward(const BackwardProblem& problem);
void map_rows(const MapsProblem& problem, std::int64_t b, std::int64_t n, std::span<const std::int64_t> queries, const RowConsumer& row);
void write_maps(const MapsProblem& problem, std::int64_t b, std::int64_t n, std::span<const std::int64_t> queries, TensorView out);

// What explain() adds: "name: value" lines.
std::string facts_of_forward(const ForwardProblem& problem);

}  // namespace polyhead::cpu
