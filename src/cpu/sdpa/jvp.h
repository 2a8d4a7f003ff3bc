// Runs forward mode (sdpa_jvp): distributes tasks of the jvp kernel over threads.
#pragma once

#include <cstdint>

#include "cpu/sdpa/group.h"
#include "problem/problem.h"

namespace polyhead::cpu {

// Returns the views of the tangents for key/value head `kv` of sequence b.
TangentViews tangents_of(const Problem& problem, const Tangents& tangents, std::int64_t b, std::int64_t kv, std::int64_t group);

// Computes the jvp of one document. For sdpa_backward_backward(), d_out is given and row_values [B,K,N/K * T] receives the RowValues of the rows of all heads; for
// sdpa_jvp() both are absent.
void run_jvp(const JvpProblem& problem, const ConstTensorView& d_out, void* row_values, int threads);

// Returns the size of RowValues in bytes for tensors of this dtype.
std::int64_t row_values_size(DType dtype);

}  // namespace polyhead::cpu
