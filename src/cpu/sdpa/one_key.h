// Computes tasks with a single key, such as the first token of each sequence of a batch: p = 1, so out = v, lse = score, d_v = sum of d_out, and d_q = d_k = 0.
// In the kernel, the set-up of strips, panels and scratch would take several times as long as this computation. Only kernel sources (*_kernel.cc) include this
// file.
//
// The functions return false, and leave the task to the kernel, if the task needs a step that they do not implement, or has numbers that are not finite.
// Forward results have the kernel's bits, so that added masked keys do not change them: the score is the same chain of multiply-adds, and exp(0) = 1, log(1) =
// 0.
#pragma once

#include "cpu/sdpa/pack.h"
#include "cpu/sdpa/rows.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

template <class T>
bool has_one_plain_key(const HeadGroup& group) {
  return group.keys == 1 && group.dtype == kOwnStorage<T> && group.key_dtype == kOwnStorage<T> && group.mask_count == 0 && !group.ranged() &&
         group.row_kinds == nullptr && group.rule == nullptr && group.softcap == 0 && group.bias.data == nullptr &&
         group.sink.data == nullptr && !group.dropout && group.q.column == 1 && group.k.column == 1 && group.v.column == 1;
}

template <class T>
POLYHEAD_INLINE T score_of_one_key(const T* q, const T* k, std::int64_t width, T power) {
  T score = 0;
  for (std::int64_t d = 0; d < width; ++d) score = multiply_add<T>(q[d], k[d] * power, score);
  return score;
}

// Returns the sum of |q[d] k[d]|, an upper bound of |sum of q[d] k[d]| in any order of addition.
template <class T>
POLYHEAD_INLINE T bound_of_score(const T* q, const T* k, std::int64_t width, T power) {
  Vector<T> sums{};
  T sum = 0;
  std::int64_t d = 0;
  for (; d + kLanes<T> <= width; d += kLanes<T>) {
    const Vector<T> product = load_vector(q + d) * (load_vector(k + d) * power);
    sums += larger(product, -product);
  }
  for (; d < width; ++d) {
    const T product = q[d] * (k[d] * power);
    sum += product < 0 ? -product : product;
  }
  return sum_of_lanes<T>(sums) + sum;
}

// Adds from[d] to to[d]. If `first`, copies from[d] to to[d].
template <class T>
POLYHEAD_INLINE void add_row(const T* from, std::int64_t width, bool first, T* to) {
  std::int64_t d = 0;
  for (; d + kLanes<T> <= width; d += kLanes<T>) store_vector<T>((first ? Vector<T>{} : load_vector(to + d)) + load_vector(from + d), to + d);
  for (; d < width; ++d) to[d] = (first ? T{0} : to[d]) + from[d];
}

template <class T>
bool run_one_key(const ForwardTask& task) {
  if (!has_one_plain_key<T>(task) || task.partial != nullptr || task.attention_weights.data != nullptr || task.out.column != 1) return false;
  constexpr T kFarFromOverflow = T{0x1p120f};
  const T power = static_cast<T>(task.scale_power), factor = static_cast<T>(task.scale_factor);
  const T *const k = static_cast<const T*>(task.k.data), *const v = static_cast<const T*>(task.v.data);
  if (!all_finite(v, task.v_width)) return false;
  Row row{task.first_row, task.first_row / task.queries, task.first_row % task.queries};
  for (std::int64_t i = 0; i < task.rows; ++i, row = next_row(row, task.queries)) {
    const T* const q = row_of(task.q, static_cast<const T*>(task.q.data), row);
    if (!(bound_of_score(q, k, task.qk_width, power) < kFarFromOverflow)) return false;
    if (task.lse.data != nullptr) {
      // Adding 0 turns -0 into 0, as adding log(1) does in the kernel.
      static_cast<T*>(task.lse.data)[row.head * task.lse.head + row.query * task.lse.row] = score_of_one_key(q, k, task.qk_width, power) * factor + T{0};
    }
    add_row(v, task.v_width, true, static_cast<T*>(task.out.data) + row.head * task.out.head + row.query * task.out.row);
  }
  return true;
}

// With more rows, this plain sum over rows would have a larger rounding error than the kernel's sums over splits.
inline constexpr std::int64_t kMostRowsOfOneKey = 16;

template <class T>
bool run_one_key(const BackwardTask& task) {
  if (!has_one_plain_key<T>(task) || task.first_row != 0 || task.rows > kMostRowsOfOneKey || task.rows != task.heads * task.queries) return false;
  if (task.d_bias.data != nullptr || task.d_sink.data != nullptr || task.rule_sums != nullptr || task.part_of_keys || !task.store_d_q) return false;
  if (task.d_k_sums != nullptr || task.d_v_sums != nullptr) return false;
  for (const std::int64_t column : {task.out.column, task.d_out.column}) {
    if (column != 1) return false;
  }
  for (const MutableHeadView& gradient : {task.d_q, task.d_k, task.d_v}) {
    if (gradient.data != nullptr && gradient.column != 1) return false;
  }
  const T power = static_cast<T>(task.scale_power), factor = static_cast<T>(task.scale_factor);
  const T *const k = static_cast<const T*>(task.k.data), *const v = static_cast<const T*>(task.v.data);
  if (!all_finite(v, task.v_width)) return false;
  Row row{0, 0, 0};
  for (std::int64_t i = 0; i < task.rows; ++i, row = next_row(row, task.queries)) {
    const T* const q = row_of(task.q, static_cast<const T*>(task.q.data), row);
    const T score = score_of_one_key(q, k, task.qk_width, power) * factor + T{0};
    // If lse differs from the score, it was computed with other keys or by another instruction set. The kernel then corrects the rounding.
    if (*row_of(task.lse, static_cast<const T*>(task.lse.data), row) != score || score * T{0} != 0) return false;
    if (!all_finite(row_of(task.out, static_cast<const T*>(task.out.data), row), task.v_width)) return false;
    if (!all_finite(row_of(task.d_out, static_cast<const T*>(task.d_out.data), row), task.v_width)) return false;
  }
  row = {0, 0, 0};
  T* const d_v = static_cast<T*>(task.d_v.data);
  for (std::int64_t i = 0; i < task.rows; ++i, row = next_row(row, task.queries)) {
    if (d_v != nullptr) add_row(row_of(task.d_out, static_cast<const T*>(task.d_out.data), row), task.v_width, i == 0, d_v);
    if (task.d_q.data != nullptr) clear(static_cast<T*>(task.d_q.data) + row.head * task.d_q.head + row.query * task.d_q.row, 0, task.qk_width);
  }
  if (task.d_k.data != nullptr) clear(static_cast<T*>(task.d_k.data), 0, task.qk_width);
  return true;
}

// Computes a task by run_one_key() if possible, else by run_kernel().
template <template <class> class Kernel, class Task>
void run_kernel_or_one_key(const Task& task, void* memory) {
  if (task.keys == 1 && (task.dtype == DType::f64 ? run_one_key<double>(task) : run_one_key<float>(task))) return;
  run_kernel<Kernel>(task, memory);
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
