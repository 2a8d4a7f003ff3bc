// The backend `reference`: simple code for every rule of docs/maths.md and for every dtype. Tests compare the fast backend with it. It computes in float64, so
// practically the only error is the rounding of results to their dtype. Each thread needs memory for one row of scores and for the keys and values of one head.
#pragma once

#include <span>

#include "problem/problem.h"

namespace polyhead::reference {

void forward(const ForwardProblem& problem);
void backward(const BackwardProblem& problem);
void jvp(const JvpProblem& problem);
void backward_backward(const BackwardBackwardProblem& problem);

// Computes the map rows of the given queries of head (b, n).
void map_rows(const MapsProblem& problem, std::int64_t b, std::int64_t n, std::span<const std::int64_t> queries, const RowConsumer& take);

// Returns the entropy -sum m log m of m = (p + q) / 2. p and q are arrays of float64 if `dtype` is float64, else of float32.
double entropy_of_mean(DType dtype, const void* p, const void* q, std::int64_t count);

}  // namespace polyhead::reference
