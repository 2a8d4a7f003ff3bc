// What one rank does under a plan. The members of its group exchange rows for heads; the members of its ring exchange keys and values.
#pragma once

#include <list>

#include "distributed/redistribution.h"
#include "distributed/ring.h"

namespace polyhead::distributed {

// This rank's group and ring in a plan, and the tensors that it computes with.
class Layout {
 public:
  Layout(Call& call, const WholeProblem& whole, const SdpaOptions& options)
      : call_(call),
        whole_(whole),
        group_(members(call.rank() / whole.plan.head_ranks * whole.plan.head_ranks, 1, whole.plan.head_ranks, call.rank())),
        ring_(members(call.rank() % whole.plan.head_ranks, whole.plan.head_ranks, whole.plan.ring_ranks, call.rank())),
        rows_(of_group(whole.queries, call.rank() / whole.plan.head_ranks)),
        key_rows_(of_group(whole.keys, call.rank() / whole.plan.head_ranks)),
        shard_{.whole = whole, .pairs = whole.pairs, .q = {}, .all_keys = whole.plan.ring_ranks == 1, .widened = whole.plan.ring_ranks > 1, .executor = options.executor, .workspace = options.workspace} {
    const Problem& p = whole.problem;
    for (int i = 0; i < group_.size(); ++i) {
      heads_.push_back(heads_of_member(p.heads, p.kv_heads, i, group_.size()));
      kv_heads_.push_back(kv_heads_of(heads_.back(), p.kv_heads > 0 ? p.heads / p.kv_heads : 1));
      one_.push_back({0, 1});
    }
    shard_.heads = heads_[static_cast<std::size_t>(group_.me)], shard_.kv_heads = kv_heads_[static_cast<std::size_t>(group_.me)];
    // The estimate of the busiest rank's work takes the most queries and the most heads of any rank. It is doubled, because with a causal mask in contiguous
    // order this rank may have up to twice its share of the query-key pairs.
    std::int64_t most_rows = 0, most_heads = 0;
    for (int i = 0; i < ring_.size(); ++i) most_rows = std::max(most_rows, GroupRows(of_group(whole.queries, i)).count());
    for (const KeyRange& heads : heads_) most_heads = std::max(most_heads, heads.last - heads.first);
    call_.expect(2 * multiply_adds(most_rows, most_heads));
    if (!exchanges()) return;
    shard_.pairs.visit([&](PairTensor& tensor) {
      if (tensor.own_rows) {
        tensor.view = kept_.emplace_back(to_heads(call_, group_, rows_, tensor.one_head() ? one_ : heads_, tensor.view));
      } else if (!tensor.one_head()) {
        tensor.view = tensor.view.slice(-3, shard_.heads.first, shard_.heads.last);
      }
    });
  }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;

  Shard& shard() { return shard_; }
  bool exchanges() const { return group_.size() > 1; }
  std::int64_t rows() const { return rows_.count(); }
  // Estimates the multiply-adds of this rank in a forward pass.
  double own_multiply_adds() const { return multiply_adds(rows(), shard_.heads.last - shard_.heads.first); }

  // Returns the group's rows of the shard's heads. They are exchanged for `view`, which has this rank's rows of all heads.
  ConstTensorView of_heads(const ConstTensorView& view) { return exchanges() ? kept_.emplace_back(to_heads(call_, group_, rows_, heads_, view)) : view; }
  ConstTensorView of_kv_heads(const ConstTensorView& view) { return exchanges() ? kept_.emplace_back(to_heads(call_, group_, key_rows_, kv_heads_, view)) : view; }
  // Returns whether several ranks compute parts of the gradient of the same key/value head. These parts must be added up.
  bool key_heads_are_shared() const { return exchanges() && whole_.problem.kv_heads < group_.size(); }
  // The inverse of of_heads(): writes this rank's rows of all heads to `to`.
  void to_rows_of(const ConstTensorView& of_heads, const TensorView& to) { return_rows(rows_, heads_, of_heads, to); }
  void to_keys_of(const ConstTensorView& of_heads, const TensorView& to) { return_rows(key_rows_, kv_heads_, of_heads, to); }
  // As to_rows_of(), for a gradient with one head, to which every member of the group contributes: writes the sum of the members' gradients.
  void add_to_rows_of(const ConstTensorView& of_group, const TensorView& to) { return_rows(rows_, one_, of_group, to); }

  Ring ring() {
    std::vector<std::vector<Positions>> queries, keys;
    for (int i = 0; i < ring_.size(); ++i) {
      queries.push_back(GroupRows(of_group(whole_.queries, i)).positions());
      keys.push_back(GroupRows(of_group(whole_.keys, i)).positions());
    }
    return {call_, ring_, shard_, std::move(queries), std::move(keys)};
  }

 private:
  double multiply_adds(std::int64_t rows, std::int64_t heads) const {
    const Problem& p = whole_.problem;
    const double share = p.queries > 0 ? static_cast<double>(rows) / static_cast<double>(p.queries) : 0;
    return share * pairs_of(p, whole_blocks(p)) * static_cast<double>(p.batch * heads) * static_cast<double>(p.qk_width + p.v_width);
  }
  std::vector<std::vector<Positions>> of_group(const std::vector<std::vector<Positions>>& of_ranks, int group) const {
    const auto first = of_ranks.begin() + std::ptrdiff_t{group} * whole_.plan.head_ranks;
    return {first, first + whole_.plan.head_ranks};
  }
  void return_rows(const GroupRows& rows, const std::vector<KeyRange>& heads, const ConstTensorView& of_heads, const TensorView& to) {
    if (!exchanges()) return copy(of_heads, to);
    const Tensor own = to_rows(call_, group_, rows, heads, to.extent(-3), of_heads);
    copy(own, to);
  }

  Call& call_;
  const WholeProblem& whole_;
  const Members group_, ring_;
  const GroupRows rows_, key_rows_;
  std::vector<KeyRange> heads_, kv_heads_, one_;  // the heads of each member of the group; one_: head 0 for every member
  Shard shard_;
  std::list<Tensor> kept_;
};

}  // namespace polyhead::distributed
