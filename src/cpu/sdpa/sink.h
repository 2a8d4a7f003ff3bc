// Sink logits: a row's sum has one more term exp(z), where z is the sink logit; the sink's value vector is 0 (docs/maths.md, eq. 4). The term belongs to no key
// block. It is added once, after the row's last key. Only kernel sources (*_kernel.cc) include this file.
#pragma once

#include "cpu/sdpa/rows.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

template <class T>
POLYHEAD_INLINE T sink_of(const HeadGroup& group, const Row& row) {
  return group.sink.data == nullptr ? -kInfinity<T> : *row_of(group.sink, static_cast<const T*>(group.sink.data), row);
}

template <class T>
POLYHEAD_INLINE T exp_of(T x, const ScoreScale<T>& scale) {
  return exp_of_negative<T>(broadcast(x), scale.natural)[0];
}

// Returns z - m, where m = reference * factor is the row's maximum.
template <class T>
POLYHEAD_INLINE T sink_above(T z, T reference, T factor) {
  return multiply_add<T>(broadcast(-reference), broadcast(factor), broadcast(z))[0];
}

// Adds a sink logit z to a row's sum l = sum_s exp(score[s] - m). With m' = max(m, z) the new sum is l exp(m - m') + exp(z - m'), so that no exponential overflows.
// Then lse = m' + log sum, and the attention weight of a key is exp(score - m) share / sum.
template <class T>
struct SumWithSink {
  T above = 0;  // m' - m
  T share = 1;  // exp(m - m')
  T of_sink = 0;  // exp(z - m')
  T sum;

  // The row's maximum m is reference * factor.
  SumWithSink(T l, T reference, T factor, T z, const ScoreScale<T>& scale) : sum(l) {
    if (z == -kInfinity<T>) return;
    const T difference = sink_above(z, reference, factor);
    if (difference > 0) {
      above = difference, share = exp_of(-difference, scale) + (z - z);  // if the sink is +infinity, z - z makes `share` NaN
      of_sink = 1;
      sum = multiply_add<T>(l, share, T{1});
    } else {
      of_sink = exp_of(difference, scale);
      sum = l + of_sink;
    }
  }
};

// Adds the sink logits to the rows' sums l, and multiplies the rows' output sums o by the factors that this causes. A row's maximum is its reference times
// `factor`. share[i] is set to SumWithSink::share, or to 0 for a row without a finite score.
template <class T>
void add_sinks(const ForwardTask& task, const ScoreScale<T>& scale, T factor, const Row* rows, std::int64_t count, std::int64_t stride,
               const T* reference, T* l, T* o, T* share) {
  if (task.sink.data == nullptr) return;
  for (std::int64_t i = 0; i < count; ++i, o += stride) {
    const T z = sink_of<T>(task, rows[i]);
    share[i] = 1;
    if (z == -kInfinity<T>) continue;
    if (l[i] == 0) {
      clear(o, 0, task.v_width);
      l[i] = 1, share[i] = 0;
      continue;
    }
    const SumWithSink<T> total(l[i], reference[i], factor, z, scale);
    l[i] = total.sum, share[i] = total.share;
    for (std::int64_t d = 0; d < task.v_width && total.share != 1; ++d) o[d] *= total.share;
  }
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
