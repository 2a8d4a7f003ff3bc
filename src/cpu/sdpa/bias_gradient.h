// Where d_bias or d_relative_bias is stored. If each (query, key) pair has its own element, the kernels write the caller's tensor; otherwise they add into
// sums, and this class says which sequences, heads and key blocks add into the same elements.
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

  // Whether sequences, key/value heads, rows of a head or keys share elements. Those that share are computed in one order, on one thread.
  bool shared_by_sequences() const { return by_sequences_; }
  bool shared_by_heads() const { return by_heads_; }
  bool shared_by_rows() const { return by_rows_; }
  bool shared_by_keys() const { return by_keys_; }

  // Groups of sequences that share elements: the sums of each group begin at 0, and are added in the order of the groups. If there is more than one group,
  // allocate_groups() makes room for the next `count` groups, and add_groups() adds their sums.
  std::int64_t groups() const { return groups_; }
  std::int64_t group_size() const { return group_size_; }
  void allocate_groups(std::int64_t count);
  void add_groups(Executor* executor);

  // True if each element belongs to one pair, whose task writes it. Nothing is zeroed before or added.
  bool written() const { return !sums_; }
  // True if d_bias is written and too large to stay in a cache: the kernels then use non-temporal stores.
  bool streamed() const { return written() && pairs_.numel() * static_cast<std::int64_t>(info(pairs_.dtype()).size) >= kLeastStreamed; }

  // Returns d_bias of sequence b, from head first_head and the document's first pair on. `group` is the group whose sums are used, counted from the
  // first allocated one.
  MutableHeadView view(std::int64_t b, std::int64_t first_head, const Document& document, std::int64_t group) const;
  void store() const {  // converts the sums to the caller's tensor
    if (sums_) sums_->store();
  }

 private:
  static constexpr std::int64_t kLeastStreamed = 32 << 20;

  void cut_sequences();

  const BackwardProblem& problem_;
  std::optional<SharedSums> sums_;
  std::vector<SharedSums> parts_;  // sums of groups
  TensorView pairs_;  // view [*,N,T,S] of the sums, or of the caller's tensor; [N,L] for a relative bias
  std::int64_t groups_ = 1, group_size_;
  bool by_sequences_ = false, by_heads_ = false, by_rows_ = false, by_keys_ = false;
};

}  // namespace polyhead::cpu
