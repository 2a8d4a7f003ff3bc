// Writes the attention weights p[t,s] = exp(score[t,s] - m) / l of the forward pass (docs/maths.md, eq. 2), before dropout. For each key block the kernel
// stores the exponentials of a row, and the reference that was subtracted from the scores. After the last key block m and l are known. The row, which is still
// in the second-level cache, is then multiplied by exp(reference - m) / l and, if there is a sink, by the factor `share` of add_sinks(). For kernel sources
// only.
#pragma once

#include "cpu/elementary.h"
#include "cpu/sdpa/forward_scratch.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

template <class T>
class AttentionWeightRows {
 public:
  AttentionWeightRows(const ForwardTask& task, const ExpFactor<T>& score_exp, const Scratch<T>& scratch)
      : task_(task), score_exp_(score_exp), s_(scratch) {}

  bool wanted() const { return task_.attention_weights.data != nullptr; }

  // Prefetches the memory in which a tile's exponentials will be stored. Call it before the tile's product is computed.
  template <int Rows>
  POLYHEAD_INLINE void fetch(std::int64_t row, std::int64_t key) const {
    if (!in_place_) return;
    for (int i = 0; i < Rows; ++i) {
      const T* const to = line(row + i) + key;
#pragma GCC unroll 4
      for (int j = 0; j < kTileVectors; ++j) __builtin_prefetch(to + j * kLanes<T>, 1);
    }
  }

  // Stores a row's exponentials e for the keys `all` of one key block: e[s] at the keys `own`, which the row attends to, and 0 at the other keys. Index 0 of e,
  // `own` and `all` is key `first`.
  void store(std::int64_t row, std::int64_t first, KeyRange all, KeyRange own, const T* e) const {
    T* const to = line(row) + first;
    if (own.empty()) return clear(to, all.first, all.last);
    clear(to, all.first, own.first), clear(to, own.last, all.last);
    for (std::int64_t s = own.first; s < own.last; ++s) to[s] = e[s];
  }

  // Stores the reference of the row's exponentials for the key block that begins at key `first`. The reference is -infinity if the exponentials are all 0.
  void set_reference(std::int64_t row, std::int64_t first, T reference) const { references(row)[first / s_.keys] = reference; }

  // Turns the row's exponentials into attention weights by the factor share exp(reference - m) / l. Keys outside of `own`, to which the row does not attend, get
  // attention weight 0. If l or share is 0, all keys get 0.
  void finish(std::int64_t index, KeyRange own, T m, T l, T share) const {
    const Row& row = s_.rows[index];
    T* const x = line(index);
    if (own.empty() || l == 0 || share == 0) own = {0, 0};
    const bool finite = l * T{0} == 0;
    if (!finite) spread_non_finite(task_, row, own, l, x);
    clear(x, 0, own.first), clear(x, own.last, task_.keys);
    for (std::int64_t first = 0; first < task_.keys; first += s_.keys) {
      const std::int64_t end = smaller(first + s_.keys, task_.keys);
      const KeyRange of_block{larger(own.first, first), smaller(own.last, end)};
      const T factor = of_block.empty() || !finite ? T{1} : factor_of(references(index)[first / s_.keys], m, l, share);
      if (in_place_) {
        for (std::int64_t s = of_block.first; s < of_block.last; ++s) x[s] *= factor;
      } else {
        const std::int64_t column = task_.attention_weights.column;
        narrow_row<T>(task_.dtype, x + first, end - first, factor, task_.attention_weights.data, offset(row) + first * column, column);
      }
    }
  }

 private:
  T factor_of(T reference, T m, T l, T share) const {
    const T rescaled = exp_of_negative<T>(broadcast(reference - m), score_exp_)[0];
    return static_cast<T>(static_cast<double>(rescaled) * static_cast<double>(share) / static_cast<double>(l));
  }

  T* references(std::int64_t row) const { return s_.block_references + row % s_.pass_rows * Scratch<T>::blocks_of_keys(task_, s_); }
  std::int64_t offset(const Row& row) const { return row.head * task_.attention_weights.head + row.query * task_.attention_weights.row; }
  T* line(std::int64_t row) const {
    return in_place_ ? static_cast<T*>(task_.attention_weights.data) + offset(s_.rows[row])
                     : s_.weights + row % s_.pass_rows * s_.attention_weights_stride;
  }

  const ForwardTask& task_;
  const ExpFactor<T> score_exp_;
  const Scratch<T>& s_;
  const bool in_place_ = writes_attention_weights_in_place<T>(task_);
};

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
