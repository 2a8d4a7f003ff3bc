// Sums the gradient of a bias, and loops over key/value heads, on one thread if there is such a gradient.
#pragma once

#include <functional>
#include <vector>

#include "core/shared_sums.h"
#include "problem/problem.h"

namespace polyhead::reference {

// Sums gradients of the bias or the relative bias in float64 and stores each element once: positions of a broadcast or sliding view that share an
// element are summed directly in it, without a tensor of the full shape.
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

// Calls f(b, kv, gradient of the bias or nullptr) for each key/value head. Without a gradient of the bias the heads run in parallel.
void for_each_kv_head(const BackwardProblem& problem, const std::function<void(std::int64_t b, std::int64_t kv, BiasGradient* d_bias)>& f);

}  // namespace polyhead::reference
