// Exchanges rows for heads and back: members of a group hold some rows of all heads, and compute some heads of all rows (DeepSpeed-Ulysses, Jacobs
// et al. 2023, section 3).
#pragma once

#include <cstdint>
#include <vector>

#include "distributed/members.h"
#include "distributed/positions.h"
#include "problem/key_set.h"

namespace polyhead::distributed {

// Returns the heads that `member` of `members` computes. If there are enough key/value heads, query heads that share one go to the same member.
KeyRange heads_of_member(std::int64_t heads, std::int64_t kv_heads, int member, int members);
// Returns the key/value heads that these query heads read.
KeyRange kv_heads_of(KeyRange heads, std::int64_t group);

// Maps the rows of each member to the rows of the group. Rows of the group are in the order of their positions.
class GroupRows {
 public:
  explicit GroupRows(const std::vector<std::vector<Positions>>& of_members);

  const std::vector<Positions>& positions() const { return all_; }
  std::int64_t count() const { return count_of(all_); }
  std::int64_t count(int member) const { return count_of(of_members_[static_cast<std::size_t>(member)]); }
  // Calls f(first row of the member, first row of the group, rows) for each range of the member.
  template <class F>
  void for_each_range(int member, const F& f) const {
    std::int64_t own = 0;
    for (const Positions& range : of_members_[static_cast<std::size_t>(member)]) {
      f(own, row_of(all_, range.first), range.count());
      own += range.count();
    }
  }

 private:
  std::vector<std::vector<Positions>> of_members_;
  std::vector<Positions> all_;
};

// Exchanges rows [*,N,rows of this member,W] for [*,heads of this member,rows of the group,W]. `heads`: the heads of each member; [0,1) for every member
// if the tensor has one head that all share.
Tensor to_heads(Call& call, const Members& group, const GroupRows& rows, const std::vector<KeyRange>& heads, const ConstTensorView& of_rows);
// The inverse of to_heads(). If several members computed a head, their results are added in the order of the members; a head that no member has becomes 0.
Tensor to_rows(Call& call, const Members& group, const GroupRows& rows, const std::vector<KeyRange>& heads, std::int64_t all_heads, const ConstTensorView& of_heads);

// Adds up a contiguous tensor over all ranks, in their order; every rank has the sum.
void all_reduce(Call& call, Tensor& tensor);

}  // namespace polyhead::distributed
