// Runs forward mode: distributes tasks of the jvp kernel over threads.
#pragma once

#include <cstdint>

#include "cpu/sdpa/group.h"
#include "problem/problem.h"

namespace polyhead::cpu {

// Returns the views of the tangents for key/value head `kv` of sequence b.
TangentViews tangents_of(const Problem& problem, const Tangents& tangents, std::int64_t b, std::int64_t kv, std::int64_t group);

// Computes the jvp of one document. d_out and row_values are the members of JvpTask, row_values for the rows of all heads [B,K,N/K * T]; both are
// absent if only forward mode is computed.
void run_jvp(const JvpProblem& problem, const ConstTensorView& d_out, void* row_values, int threads);

// Size of RowValues in bytes.
std::int64_t row_values_size(DType dtype);

}  // namespace polyhead::cpu
