// Computes the results of a row from its sums o and l and its maximum m: out = o / l, lse = m + log l. Only kernel sources (*_kernel.cc) include this file.
#pragma once

#include "cpu/sdpa/sink.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// Returns the factor of the exponential exp(factor (score - m)). With softcap or bias the factor is 1, because scores and references m are complete. Otherwise
// it is ScoreScale::factor: the part of the scale by which neither q nor k was multiplied, so that scores and references still lack it.
template <class T>
const ExpFactor<T>& score_exp_of(const HeadGroup& group, const ScoreScale<T>& scale) {
  return group.softcap > 0 || group.bias.data != nullptr ? scale.natural : scale.scaled;
}

// Computes the divisor of each row of o, and the reciprocal of the divisor. The divisor is l or, with dropout, l times the probability to keep an entry. If l =
// 0, it is 1. All arrays are padded to whole vectors.
template <class T>
POLYHEAD_INLINE void find_divisors(const ForwardTask& task, std::int64_t count, const T* l, T* divisor, T* reciprocal) {
  for (std::int64_t i = 0; i < count; i += kLanes<T>) {
    const Vector<T> sum = load_vector(l + i), kept = task.dropout ? sum / static_cast<T>(task.dropout_scale) : sum;
    const Vector<T> x = sum == T{0} ? broadcast(T{1}) : kept;
    store_vector<T>(x, divisor + i);
    store_vector<T>(T{1} / x, reciprocal + i);
  }
}

// Returns whether the quotients o / l can be stored in `out` as whole vectors. For this, `out` must have the compute type, contiguous rows, and a width that is
// a multiple of a vector.
template <class T>
bool stores_in_place(const ForwardTask& task) {
  return task.dtype == kOwnStorage<T> && task.out.column == 1 && task.v_width % kLanes<T> == 0;
}

// Stores out = o / l, or 0 where l = 0. Rows of o are `stride` elements apart; each row of o and the array l are padded to whole vectors.
template <class T>
void store_out(const ForwardTask& task, const Row* rows, std::int64_t count, T* o, std::int64_t stride, const T* l) {
  constexpr int kWidth = kLanes<T>;
  const std::int64_t padded = round_up(task.v_width, kWidth);
  const bool direct = stores_in_place<T>(task);
  for (std::int64_t first = 0; first < count; first += kWidth) {
    T divisor[kWidth], reciprocal[kWidth];
    find_divisors<T>(task, 1, l + first, divisor, reciprocal);
    for (std::int64_t i = first; i < smaller(first + kWidth, count); ++i, o += stride) {
      const std::int64_t offset = rows[i].head * task.out.head + rows[i].query * task.out.row;
      if (l[i] == 0) clear(o, 0, padded);
      T* to = direct ? static_cast<T*>(task.out.data) + offset : o;
      for (std::int64_t d = 0; d < padded; d += kWidth)
        store_vector<T>(divide<T>(load_vector(o + d), divisor[i - first], reciprocal[i - first]), to + d);
      if (!direct) narrow_row<T>(task.dtype, o, task.v_width, T{1}, task.out.data, offset, task.out.column);
    }
  }
}

// Stores lse = m + log l, or -infinity where l = 0. For rows with share != 1 it stores sink + log l (see add_sinks()). Overwrites l. m and l are padded to
// whole vectors. It computes in float64: the backward pass subtracts lse from all scores of a row, so an error of lse would be an error of all attention
// weights of the row.
template <class T>
void store_lse(const ForwardTask& task, const ExpFactor<T>& score_exp, const Row* rows, std::int64_t count, const T* m, T* l, const T* share) {
  constexpr int kWidth = kLanes<double>;
  if (task.lse.data == nullptr) return;
  for (std::int64_t i = 0; i < count; i += kWidth) {
    Vector<double> sum, reference;
    for (int j = 0; j < kWidth; ++j) sum[j] = l[i + j], reference[j] = m[i + j];
    const Vector<double> log_sum = log<double>(sum),
                         lse = sum == 0.0 ? broadcast(-kInfinity<double>) : multiply_add<double>(reference, broadcast(double{score_exp.factor}), log_sum);
    for (int j = 0; j < kWidth; ++j) l[i + j] = static_cast<T>(lse[j]);
    for (std::int64_t j = i; j < smaller(i + kWidth, count) && task.sink.data != nullptr; ++j) {
      if (share[j] != 1) l[j] = static_cast<T>(sink_of<T>(task, rows[j]) + log_sum[j - i]);
    }
  }
  for (std::int64_t i = 0; i < count; ++i) static_cast<T*>(task.lse.data)[rows[i].head * task.lse.head + rows[i].query * task.lse.row] = l[i];
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
