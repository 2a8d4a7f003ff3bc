// Helpers that the trained models share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "polyhead/dtype.h"

namespace polyhead::models {

// Calls f(0.F) for float32, f(0.0) for float64.
template <class F>
void with_type(DType dtype, const F& f) {
  dtype == DType::f64 ? f(0.0) : f(0.F);
}

// Returns 0 to count - 1, the positions of a text's tokens or of an image's patches.
inline std::vector<std::int64_t> positions_of(std::int64_t count) {
  std::vector<std::int64_t> list(static_cast<std::size_t>(count));
  std::iota(list.begin(), list.end(), 0);
  return list;
}

// Replaces logits by their softmax, in place. There must be at least one logit.
inline void softmax(std::span<double> logits) {
  const double largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (double& x : logits) sum += x = std::exp(x - largest);
  for (double& x : logits) x /= sum;
}

}  // namespace polyhead::models
