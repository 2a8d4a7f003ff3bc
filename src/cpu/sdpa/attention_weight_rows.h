// Attention weights p[t,s] = exp(score[t,s] - m) / l that the forward pass writes (docs/maths.md, eq. 2), before dropout. Each key block
// stores its exponentials; after the last block l is known, and the row is divided while it is in the second-level cache. For kernel
// sources only.
#pragma once

#include "cpu/sdpa/forward_scratch.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

template <class T>
class AttentionWeightRows {
 public:
  AttentionWeightRows(const ForwardTask& task, const Scratch<T>& scratch) : task_(task), s_(scratch) {}

  bool wanted() const { return task_.attention_weights.data != nullptr; }

  // Prefetches the memory of a tile's exponentials while its product runs.
  template <int Rows>
  POLYHEAD_INLINE void fetch(std::int64_t row, std::int64_t key) const {
    if (!in_place_) return;
    for (int i = 0; i < Rows; ++i) {
      const T* const to = line(row + i) + key;
#pragma GCC unroll 4
      for (int j = 0; j < kTileVectors; ++j) __builtin_prefetch(to + j * kLanes<T>, 1);
    }
  }

  // Stores a row's exponentials e of one key block: e[s] for s in `own`, 0 for the rest of `all`. s = 0 is key `first`.
  void store(std::int64_t row, std::int64_t first, KeyRange all, KeyRange own, const T* e) const {
    T* const to = line(row) + first;
    if (own.empty()) return clear(to, all.first, all.last);
    clear(to, all.first, own.first), clear(to, own.last, all.last);
    for (std::int64_t s = own.first; s < own.last; ++s) to[s] = e[s];
  }

  // Multiplies the row's stored exponentials of `keys` by the factor of its raised reference.
  void rescale(std::int64_t row, KeyRange keys, T factor) const {
    T* const x = line(row);
    for (std::int64_t s = keys.first; s < keys.last; ++s) x[s] *= factor;
  }

  // Divides the row's exponentials by their sum l. `own` are the keys that the row attends to; other keys get 0, and if l = 0 all keys do.
  void finish(std::int64_t index, KeyRange own, T l) const {
    const Row& row = s_.rows[index];
    T* const x = line(index);
    if (own.empty() || l == 0) own = {0, 0};
    const bool finite = l * T{0} == 0;
    if (!finite) spread_non_finite(task_, row, own, l, x);
    const T factor = finite && l != 0 ? static_cast<T>(1 / static_cast<double>(l)) : T{1};
    clear(x, 0, own.first), clear(x, own.last, task_.keys);
    if (!in_place_) return narrow_row<T>(task_.dtype, x, task_.keys, factor, task_.attention_weights.data, offset(row), task_.attention_weights.column);
    for (std::int64_t s = own.first; s < own.last; ++s) x[s] *= factor;
  }

 private:
  std::int64_t offset(const Row& row) const { return row.head * task_.attention_weights.head + row.query * task_.attention_weights.row; }
  T* line(std::int64_t row) const {
    return in_place_ ? static_cast<T*>(task_.attention_weights.data) + offset(s_.rows[row]) : s_.weights + row % s_.pass_rows * s_.attention_weights_stride;
  }

  const ForwardTask& task_;
  const Scratch<T>& s_;
  const bool in_place_ = writes_attention_weights_in_place<T>(task_);
};

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
