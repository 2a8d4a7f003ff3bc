// The specification in code: every rule of docs/maths.md, written plainly, for any dtype. Arithmetic is float64, so the only error is the
// rounding to the storage type, and fast backends can be compared with it. Memory per thread: one row of scores and the head's keys and values.
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

// Returns the entropy -sum m log m of m = (p + q) / 2. p and q are float64 arrays if `dtype` is float64, else float32 arrays.
double entropy_of_mean(DType dtype, const void* p, const void* q, std::int64_t count);

}  // namespace polyhead::reference
