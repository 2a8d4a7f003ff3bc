// The memory in which d_bias is summed, and which parts of the problem add into the same elements of it.
#pragma once

#include "core/shared_sums.h"
#include "cpu/sdpa/task.h"
#include "problem/problem.h"

namespace polyhead::cpu {

class BiasGradient {
 public:
  explicit BiasGradient(const BackwardProblem& problem);

  // Whether sequences, key/value heads or blocks of keys share elements: what shares them is added in one order, on one thread.
  bool shared_by_sequences() const { return by_sequences_; }
  bool shared_by_heads() const { return by_heads_; }
  bool shared_by_keys() const { return by_keys_; }

  MutablePlane plane(std::int64_t b, std::int64_t first_head) const;
  void store() const { sums_.store(); }  // as the caller's type

 private:
  SharedSums sums_;
  TensorView pairs_;  // [*,N,T,S] of them
  bool by_sequences_ = false, by_heads_ = false, by_keys_ = false;
};

}  // namespace polyhead::cpu
