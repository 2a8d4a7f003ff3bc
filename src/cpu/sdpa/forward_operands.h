// q, k and v as the forward tiles read them: in place where they can, else copied. For kernel sources only.
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
  const T* v() const { return v_; }        // of the block of keys
  bool finite() const { return finite_; }  // else what of v is not was left out

  // In place where the tiles can read them so.
  void load_queries() {
    const Plane& q = task_.q;
    const bool one_head = task_.first_row % task_.queries + task_.rows <= task_.queries;
    if (task_.dtype == kOwnStorage && q.column == 1 && (one_head || q.head == task_.queries * q.row)) {
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

  void load_keys(std::int64_t first, Span block) {
    const std::int64_t from = block.first / kPanel * kPanel;
    const int count = static_cast<int>(block.last - from);
    with_storage<T>(task_.dtype, task_.k.data, [&](auto* data) {
      pack_transposed<T>(data + (first + from) * task_.k.row, task_.k.row, task_.k.column, count, task_.qk_width, k_factor_, s_->lines,
                         s_->k + from * task_.qk_width);
    });
    const Plane& v = task_.v;
    if (task_.dtype == kOwnStorage && v.column == 1 && v.row == s_->v_padded && task_.v_width == s_->v_padded) {  // in place
      v_ = static_cast<const T*>(v.data) + first * v.row;
      finite_ = all_finite(v_ + from * v.row, count * v.row);
      if (finite_) return;
    }
    v_ = s_->v;
    finite_ = with_storage<T>(task_.dtype, v.data, [&](auto* data) {
      return copy_rows<T>(data + (first + from) * v.row, v.row, v.column, count, task_.v_width, s_->v_padded, T{1},
                          s_->v + from * s_->v_padded);
    });
    if (!finite_) drop_spoilt(s_->v + from * s_->v_padded, count * s_->v_padded, s_->v + from * s_->v_padded);
  }

  // The next strip's, while this one's products run.
  void fetch_queries(std::int64_t strip, int rows) const {
    const T* q = q_ + strip * q_stride_;
    for (int i = 0; i < rows; ++i, q += q_stride_) {
      for (std::int64_t d = 0; d < task_.qk_width; d += 64 / static_cast<std::int64_t>(sizeof(T))) __builtin_prefetch(q + d);
    }
  }

 private:
  static constexpr int kWidth = kLanes<T>, kPanel = kPanelKeys<T>;
  static constexpr DType kOwnStorage = sizeof(T) == 8 ? DType::f64 : DType::f32;

  const ForwardTask& task_;
  const T k_factor_;
  const Scratch<T>* s_;
  const T *q_ = nullptr, *v_ = nullptr;
  std::int64_t q_stride_ = 0;
  bool finite_ = true;
};

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
