// Sums the gradient of a bias, and runs the loop over key/value heads of the backward passes.
#pragma once

#include <functional>
#include <vector>

#include "core/shared_sums.h"
#include "problem/problem.h"

namespace polyhead::reference {

// Sums the gradient of the bias or of the relative bias in float64, and stores each element once. If positions of a broadcast or sliding view share an element,
// they add to the same sum, so no tensor [*,N,T,S] is allocated.
class BiasGradient {
 public:
  explicit BiasGradient(const BackwardProblem& problem);
  void add(std::int64_t b, std::int64_t n, std::int64_t t, const std::vector<double>& d_score) const;
  void store() const { sums_.store(); }

 private:
  const BackwardProblem& problem_;
  SharedSums sums_;
  TensorView pairs_;
};

// Calls f(b, kv, d_bias) for each key/value head. If a gradient of the bias is computed, d_bias receives it and one thread runs all heads. Otherwise d_bias is
// nullptr and the heads run in parallel.
void for_each_kv_head(const BackwardProblem& problem, const std::function<void(std::int64_t b, std::int64_t kv, BiasGradient* d_bias)>& f);

}  // namespace polyhead::reference
