// q, k and v in the order in which the forward tiles read them: in place where the strides allow it, else copied. For kernel sources only.
#pragma once

#include "cpu/sdpa/forward_scratch.h"
#include "cpu/sdpa/pack.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

template <class T>
class ForwardOperands {
 public:
  ForwardOperands(const ForwardTask& task, T k_factor, const Scratch<T>& scratch) : task_(task), k_factor_(k_factor), s_(&scratch) {}

  const T* q(std::int64_t row) const { return q_ + row * q_stride_; }
  std::int64_t q_stride() const { return q_stride_; }
  const T* k() const { return k_; }  // the key block in panels
  const T* v() const { return v_; }
  bool finite() const { return finite_; }  // false: NaN and infinities of the block's v are replaced by 0

  // Uses q in place if its rows are evenly spaced, contiguous and in the compute type; else copies it.
  void load_queries() {
    const Plane& q = task_.q;
    const bool one_head = task_.first_row % task_.queries + task_.rows <= task_.queries;
    if (task_.dtype == kOwnStorage<T> && q.column == 1 && (one_head || q.head == task_.queries * q.row)) {
      q_ = row_of(q, static_cast<const T*>(q.data), s_->rows[0]);
      q_stride_ = q.row;
      return;
    }
    q_ = s_->q;
    q_stride_ = task_.qk_width;
    for (std::int64_t i = 0; i < task_.rows; ++i) {
      with_storage<T>(task_.dtype, q.data, [&](auto* data) {
        widen_row<T>(row_of(q, data, s_->rows[i]), q.column, task_.qk_width, T{1}, s_->q + i * task_.qk_width);
      });
    }
  }

  // Loads k and v of the keys first + `block`. again: an earlier pass has packed them and they are still in memory.
  void load_keys(std::int64_t first, KeyRange block, bool again) {
    const std::int64_t from = block.first / kPanel * kPanel, place = s_->keeps_keys ? first : 0;
    const int count = static_cast<int>(block.last - from);
    T *const k = s_->k + place * task_.qk_width, *const v = s_->v + place * s_->v_padded;
    const bool in_place =
        task_.key_dtype == kOwnStorage<T> && task_.v.column == 1 && task_.v.row == s_->v_padded && task_.v_width == s_->v_padded;
    std::uint8_t& all_of_block = s_->finite[place / s_->keys];
    if (!again) {
      with_key_storage<T>(task_.key_dtype, task_.k.data, [&](auto* data) {
        pack_transposed<T>(data + (first + from) * task_.k.row, task_.k.row, task_.k.column, count, task_.qk_width, k_factor_, s_->lines,
                           k + from * task_.qk_width, RowScales<T>(task_.k_scale, first + from));
      });
      const bool ready = in_place && all_finite(values_at(first + from), count * task_.v.row);
      all_of_block = ready || copy_values(first + from, count, v + from * s_->v_padded) ? 1 : 0;
    }
    k_ = k;
    finite_ = all_of_block != 0;
    v_ = in_place && finite_ ? values_at(first) : v;
  }

  // Prefetches the next strip's queries while this strip's products run.
  void fetch_queries(std::int64_t strip, int rows) const {
    const T* q = q_ + strip * q_stride_;
    for (int i = 0; i < rows; ++i, q += q_stride_) {
      for (std::int64_t d = 0; d < task_.qk_width; d += 64 / static_cast<std::int64_t>(sizeof(T))) __builtin_prefetch(q + d);
    }
  }

 private:
  static constexpr int kWidth = kLanes<T>, kPanel = kPanelKeys<T>;

  const T* values_at(std::int64_t key) const { return static_cast<const T*>(task_.v.data) + key * task_.v.row; }

  // Copies v with NaN and infinities replaced by 0. Returns whether there were none.
  bool copy_values(std::int64_t first, int count, T* to) const {
    const Plane& v = task_.v;
    const bool finite = with_key_storage<T>(task_.key_dtype, v.data, [&](auto* data) {
      return copy_rows<T>(data + first * v.row, v.row, v.column, count, task_.v_width, s_->v_padded, T{1}, to,
                          RowScales<T>(task_.v_scale, first));
    });
    if (!finite) zero_non_finite(to, count * s_->v_padded, to);
    return finite;
  }

  const ForwardTask& task_;
  const T k_factor_;
  const Scratch<T>* s_;
  const T *q_ = nullptr, *k_ = nullptr, *v_ = nullptr;
  std::int64_t q_stride_ = 0;
  bool finite_ = true;
};

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
