// From a problem to what the kernels are given.
#pragma once

#include <vector>

#include "cpu/sdpa/task.h"
#include "problem/problem.h"

namespace polyhead::cpu {

// The group of key/value head `kv` of sequence b. `kinds` is memory for the kinds of its rows and lives as long as the group is used.
HeadGroup head_group(const Problem& problem, const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v, std::int64_t b,
                     std::int64_t kv, std::vector<RowKind>& kinds);

// A view [*,N,rows,columns] of sequence b, from head n on.
Plane plane_of(const ConstTensorView& view, std::int64_t b, std::int64_t n);
MutablePlane plane_of(const TensorView& view, std::int64_t b, std::int64_t n);

}  // namespace polyhead::cpu
