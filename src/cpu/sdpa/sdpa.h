// The operations of the backend `cpu`, which run the kernels of this folder. README.md describes the kernels.
#pragma once

#include <span>
#include <string>

#include "problem/problem.h"

namespace polyhead::cpu {

// Returns the reason why the kernels cannot compute the problem, or an empty text if they can.
std::string declines(const Problem& problem);

void sdpa_forward(const ForwardProblem& problem);
void sdpa_backward(const BackwardProblem& problem);
void sdpa_jvp(const JvpProblem& problem);
void sdpa_backward_backward(const BackwardBackwardProblem& problem);
void map_rows(const MapsProblem& problem, std::int64_t b, std::int64_t n, std::span<const std::int64_t> queries, const RowConsumer& row);
void write_maps(const MapsProblem& problem, std::int64_t b, std::int64_t n, std::span<const std::int64_t> queries, TensorView out);
double entropy_of_mean(DType dtype, const void* p, const void* q, std::int64_t count);

// Returns the lines "name: value" that explain() shows for a forward pass.
std::string facts_of_forward(const ForwardProblem& problem);

}  // namespace polyhead::cpu
