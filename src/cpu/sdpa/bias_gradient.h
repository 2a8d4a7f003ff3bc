// BiasGradient says where the kernels store d_bias or d_relative_bias. If no two pairs (query, key) share an element, the kernels write the caller's tensor.
// Otherwise the kernels add to sums, and this class says which sequences, heads, rows and keys add to the same elements.
#pragma once

#include <optional>
#include <vector>

#include "core/shared_sums.h"
#include "cpu/sdpa/task.h"
#include "problem/problem.h"

namespace polyhead::cpu {

class BiasGradient {
 public:
  explicit BiasGradient(const BackwardProblem& problem);

  // These functions return whether different sequences, key/value heads, rows of a head, or keys share elements. Those that share elements are computed by one
  // thread in a fixed order.
  bool shared_by_sequences() const { return by_sequences_; }
  bool shared_by_heads() const { return by_heads_; }
  bool shared_by_rows() const { return by_rows_; }
  bool shared_by_keys() const { return by_keys_; }

  // If sequences share elements, they are divided into groups. Each group has separate sums, which begin at 0, and the sums are added in the order of the
  // groups. If there is more than one group, allocate_groups() allocates the sums of the next `count` groups, and add_groups() adds them.
  std::int64_t groups() const { return groups_; }
  std::int64_t group_size() const { return group_size_; }
  void allocate_groups(std::int64_t count);
  void add_groups(Executor* executor);

  // Returns true if each element belongs to one pair (query, key). The task that computes the pair then writes the element; elements are not set to zero first,
  // and nothing is added.
  bool written() const { return !sums_; }
  // Returns true if d_bias is written and too large to stay in a cache. The kernels then use non-temporal stores.
  bool streamed() const { return written() && pairs_.numel() * static_cast<std::int64_t>(info(pairs_.dtype()).size) >= kLeastStreamed; }

  // Returns the view of d_bias for sequence b, beginning at head first_head and at the document's first query and key. `group` is the index of the group whose
  // sums are used, among the allocated groups.
  MutableHeadView view(std::int64_t b, std::int64_t first_head, const Document& document, std::int64_t group) const;
  void store() const {  // converts the sums to the caller's dtype and stores them in the caller's tensor
    if (sums_) sums_->store();
  }

 private:
  static constexpr std::int64_t kLeastStreamed = 32 << 20;

  void cut_sequences();

  const BackwardProblem& problem_;
  std::optional<SharedSums> sums_;
  std::vector<SharedSums> parts_;  // sums of each allocated group
  TensorView pairs_;  // view of the sums, or of the caller's tensor: [*,N,T,S], or [N,L] for a relative bias
  std::int64_t groups_ = 1, group_size_;
  bool by_sequences_ = false, by_heads_ = false, by_rows_ = false, by_keys_ = false;
};

}  // namespace polyhead::cpu
