// Converts a relative bias (ALiBi or T5) to a table of its values at all distances that occur in a problem.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "polyhead/relative_bias.h"
#include "polyhead/tensor.h"
#include "problem/problem.h"

namespace polyhead {

// Returns the reason why this number of buckets or this max_distance is not allowed, or an empty text if both are allowed.
std::string bucket_fault(std::int64_t buckets, bool bidirectional, std::int64_t max_distance);

// Sets distance_origin of every band, and returns the distances that occur.
Distances find_distances(KeyRules& rules, std::int64_t queries, std::int64_t keys);

// Returns a tensor [N,L] of `dtype`: the bias of each head at each of the L distances.
Tensor relative_bias_values(const RelativeBias& bias, const Distances& distances, DType dtype);

// Computes the gradient of slopes or table from d_values [N,L], the gradients of the bias values. The sums are float64, in the order of the distances.
[[gnu::visibility("default")]] void add_up_relative_gradient(  // exported: the libraries of other components call it
    const RelativeBias& bias, const Distances& distances, ConstTensorView d_values, TensorView gradient);

}  // namespace polyhead
