// Where d_bias goes: into the caller's tensor where each pair has an element of its own, else into sums; and which sequences, heads and key
// blocks add into the same elements.
#pragma once

#include <optional>

#include "core/shared_sums.h"
#include "cpu/sdpa/task.h"
#include "problem/problem.h"

namespace polyhead::cpu {

class BiasGradient {
 public:
  explicit BiasGradient(const BackwardProblem& problem);

  // Whether sequences, key/value heads or blocks of keys share elements: those are added in one order, on one thread.
  bool shared_by_sequences() const { return by_sequences_; }
  bool shared_by_heads() const { return by_heads_; }
  bool shared_by_keys() const { return by_keys_; }

  // Every element is written once, by the one task that has its pair; nothing is zeroed first and nothing added.
  bool written() const { return !sums_; }
  // Written, and too large to stay in a cache until it is read: non-temporal stores.
  bool streamed() const { return written() && pairs_.numel() * static_cast<std::int64_t>(info(pairs_.dtype()).size) >= kLeastStreamed; }

  // From the first pair of a document on.
  MutablePlane plane(std::int64_t b, std::int64_t first_head, const Document& document) const;
  void store() const {  // as the caller's type
    if (sums_) sums_->store();
  }

 private:
  static constexpr std::int64_t kLeastStreamed = 32 << 20;

  std::optional<SharedSums> sums_;
  TensorView pairs_;  // [*,N,T,S] of them, or of the caller's tensor
  bool by_sequences_ = false, by_heads_ = false, by_keys_ = false;
};

}  // namespace polyhead::cpu
