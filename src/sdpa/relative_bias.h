// Converts a relative bias to a table of its values at all distances that occur.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "polyhead/relative_bias.h"
#include "polyhead/tensor.h"
#include "problem/problem.h"

namespace polyhead {

// Returns the reason why these numbers of buckets and distances are not allowed; empty if they are.
std::string bucket_fault(std::int64_t buckets, bool bidirectional, std::int64_t max_distance);

// Sets distance_origin of every band, and returns which distances occur.
Distances find_distances(KeyRules& rules, std::int64_t queries, std::int64_t keys);

// Returns [N,L] in `dtype`: the bias of each head at each of the L distances.
Tensor relative_bias_values(const RelativeBias& bias, const Distances& distances, DType dtype);

// Computes the gradient of slopes or table: adds up d_values [N,L] in float64, in the order of the distances.
[[gnu::visibility("default")]] void add_up_relative_gradient(  // components call it
    const RelativeBias& bias, const Distances& distances, ConstTensorView d_values, TensorView gradient);

}  // namespace polyhead
