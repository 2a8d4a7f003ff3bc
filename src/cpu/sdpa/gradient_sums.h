// Holds the sums of d_q, d_k and d_v of a task of the backward pass. d_k and d_v over a split of the rows, and d_q over a split of the keys, are summed from 0
// and then added to the sums of the earlier splits (docs/maths.md, section 7). Only kernel sources (*_kernel.cc) include this file.
#pragma once

#include "core/interrupted.h"
#include "cpu/sdpa/backward_scratch.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

template <class T>
class GradientSums {
 public:
  // block_rows is the number of rows of a query block, a divisor of task.rows_per_split.
  GradientSums(const BackwardTask& task, const ScoreScale<T>& scale, const BackwardScratch<T>& s, std::int64_t block_rows)
      : task_(task),
        scale_(scale),
        s_(s),
        block_rows_(block_rows),
        d_q_total_(static_cast<T*>(task.d_q_sums)),
        d_q_(task.d_q_split != nullptr ? static_cast<T*>(task.d_q_split) : d_q_total_),
        d_q_stride_(gradient_stride(task.qk_width)) {}

  // Runs the loops over key blocks and query blocks. For each key block it calls load(first, count), then multiply(first, count, block, rows) for each query
  // block, which begins at row `block`, and then finish(sums, padded) for d_k and for d_v. finish() restores the order of elements if multiply() stores the
  // sums in another order.
  template <class Load, class Multiply, class Finish>
  void run(const Load& load, const Multiply& multiply, const Finish& finish) {
    const std::int64_t d_q_size = s_.row_count * d_q_stride_;
    if (d_q_ != nullptr) clear(d_q_total_, 0, d_q_size);
    for (std::int64_t first = task_.first_key; first < task_.last_key; first += s_.keys) {
      const std::int64_t count = smaller(s_.keys, task_.last_key - first);
      if (interrupted()) return;
      const bool split_begins = (first - task_.first_key) % task_.keys_per_split == 0;
      if (d_q_ != d_q_total_ && split_begins) clear(d_q_, 0, d_q_size);
      load(first, count);
      run_key_block(first, count, multiply, finish);
      const bool split_ends = first + count == task_.last_key || (first + count - task_.first_key) % task_.keys_per_split == 0;
      if (d_q_ != d_q_total_ && split_ends) add_array(d_q_, d_q_size, d_q_total_);
    }
    if (task_.stream_d_bias) store_fence();
    if (d_q_ == nullptr || !task_.store_d_q) return;
    for (std::int64_t i = 0; i < s_.row_count; ++i)
      store(task_.d_q, s_.rows[i].head, s_.rows[i].query, d_q_total_ + i * d_q_stride_, task_.qk_width, scale_.power * scale_.of_products);
  }

  template <class Load, class Multiply>
  void run(const Load& load, const Multiply& multiply) {
    run(load, multiply, [](T*, std::int64_t) {});
  }

  // Return the sums of the current split: d_q of a row (nullptr if d_q is not computed), and d_k and d_v of the keys of the current key block.
  T* d_q(std::int64_t row) const { return d_q_ == nullptr ? nullptr : d_q_ + row * d_q_stride_; }
  std::int64_t d_q_stride() const { return d_q_stride_; }
  T* d_k() const { return d_k_; }
  T* d_v() const { return d_v_; }

 private:
  void store(const MutableHeadView& view, std::int64_t head, std::int64_t row, const T* from, std::int64_t width, T factor = 1) const {
    if (view.data == nullptr) return;
    narrow_row<T>(task_.dtype, from, width, factor, view.data, head * view.head + row * view.row, view.column);
  }

  static void add_array(const T* from, std::int64_t count, T* to) {
    for (std::int64_t i = 0; i < count; ++i) to[i] += from[i];
  }
  static void move_array(T* from, std::int64_t count, T* to) {  // adds `from` to `to`, then sets `from` to 0
    for (std::int64_t i = 0; i < count; ++i) to[i] += from[i], from[i] = 0;
  }
  static void copy(const T* from, std::int64_t count, T* to) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = from[i];
  }

  // Computes one key block, for one split of the rows after the other. The first split adds directly to s_.d_k and s_.d_v.
  template <class Multiply, class Finish>
  void run_key_block(std::int64_t first, std::int64_t count, const Multiply& multiply, const Finish& finish) {
    const std::int64_t keys = kHasAmx ? round_up(count, 32) : count, k_size = keys * s_.qk_padded, v_size = keys * s_.v_padded;
    clear(d_k_ = s_.d_k, 0, k_size);
    clear(d_v_ = s_.d_v, 0, v_size);
    for (std::int64_t split = 0; split < s_.row_count; split += task_.rows_per_split) {
      const std::int64_t end = smaller(split + task_.rows_per_split, s_.row_count);
      if (split == task_.rows_per_split) {
        clear(d_k_ = s_.d_k_split, 0, k_size);
        clear(d_v_ = s_.d_v_split, 0, v_size);
      }
      for (std::int64_t block = split; block < end; block += block_rows_)
        multiply(first, count, block, static_cast<int>(smaller(block_rows_, end - block)));
      if (split > 0) move_array(d_k_, k_size, s_.d_k), move_array(d_v_, v_size, s_.d_v);
    }
    finish(s_.d_k, s_.qk_padded), finish(s_.d_v, s_.v_padded);
    store_keys(first, count, s_.d_k, s_.d_v);
  }

  void store_keys(std::int64_t first, std::int64_t count, const T* d_k, const T* d_v) const {
    for (std::int64_t s = 0; s < count; ++s, d_k += s_.qk_padded, d_v += s_.v_padded) {
      if (task_.d_k_sums != nullptr) {
        copy(d_k, s_.qk_padded, static_cast<T*>(task_.d_k_sums) + (first - task_.first_key + s) * gradient_stride(task_.qk_width));
      } else {
        store(task_.d_k, 0, first + s, d_k, task_.qk_width, scale_.of_products);
      }
      if (task_.d_v_sums != nullptr) {
        copy(d_v, s_.v_padded, static_cast<T*>(task_.d_v_sums) + (first - task_.first_key + s) * gradient_stride(task_.v_width));
      } else {
        store(task_.d_v, 0, first + s, d_v, task_.v_width);
      }
    }
  }

  const BackwardTask& task_;
  const ScoreScale<T>& scale_;
  const BackwardScratch<T>& s_;
  const std::int64_t block_rows_;
  // The sums over all keys of the task, and over the current split of the keys. They share memory unless task.d_q_split is given.
  T *const d_q_total_, *const d_q_;
  const std::int64_t d_q_stride_;
  T *d_k_ = nullptr, *d_v_ = nullptr;  // the sums over the current split of the rows, for the current key block
};

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
