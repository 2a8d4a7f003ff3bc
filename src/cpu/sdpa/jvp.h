// Forward mode on the threads: tasks of the jvp kernel.
#pragma once

#include <cstdint>

#include "cpu/sdpa/group.h"
#include "problem/problem.h"

namespace polyhead::cpu {

// Points tangents at key/value head `kv` of sequence b.
TangentPlanes tangents_of(const Problem& problem, const Tangents& tangents, std::int64_t b, std::int64_t kv, std::int64_t group);

// The jvp of one document. d_out, and row_values for the rows of all heads [B,K,N/K * T], as in JvpTask; absent for forward mode alone.
void run_jvp(const JvpProblem& problem, const ConstTensorView& d_out, void* row_values, int threads);

// Bytes of the RowValues of a row.
std::int64_t row_values_size(DType dtype);

}  // namespace polyhead::cpu
