// Where d_bias is stored. If each (query, key) pair has its own element, the kernels write the caller's tensor; otherwise they add into
// sums, and this class says which sequences, heads and key blocks add into the same elements.
#pragma once

#include <optional>

#include "core/shared_sums.h"
#include "cpu/sdpa/task.h"
#include "problem/problem.h"

namespace polyhead::cpu {

class BiasGradient {
 public:
  explicit BiasGradient(const BackwardProblem& problem);

  // Whether sequences, key/value heads or key blocks share elements. Those that share are computed in one order, on one thread.
  bool shared_by_sequences() const { return by_sequences_; }
  bool shared_by_heads() const { return by_heads_; }
  bool shared_by_keys() const { return by_keys_; }

  // True if each element belongs to one pair, whose task writes it. Nothing is zeroed before or added.
  bool written() const { return !sums_; }
  // True if d_bias is written and too large to stay in a cache: non-temporal stores.
  bool streamed() const { return written() && pairs_.numel() * static_cast<std::int64_t>(info(pairs_.dtype()).size) >= kLeastStreamed; }

  // d_bias of sequence b, from head first_head and the document's first pair on.
  MutablePlane plane(std::int64_t b, std::int64_t first_head, const Document& document) const;
  void store() const {  // converts the sums to the caller's tensor
    if (sums_) sums_->store();
  }

 private:
  static constexpr std::int64_t kLeastStreamed = 32 << 20;

  std::optional<SharedSums> sums_;
  TensorView pairs_;  // view [*,N,T,S] of the sums, or of the caller's tensor
  bool by_sequences_ = false, by_heads_ = false, by_keys_ = false;
};

}  // namespace polyhead::cpu
