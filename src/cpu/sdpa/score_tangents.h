// Computes p and the tangents of the scores of a row from its products (docs/maths.md, eq. 2, 8a). Only kernel sources (*_kernel.cc) include this file.
#pragma once

#include "cpu/sdpa/dropout.h"
#include "cpu/sdpa/sink.h"
#include "cpu/sdpa/softmax.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// Scratch for one row: arrays with an element for each key of a key block. The first two are used only with a softcap: the softcap's derivative, and its second
// derivative times the tangent x' of the score.
template <class T>
struct RowLines {
  T *softcap_derivative, *curvature;
  std::uint8_t* bytes;  // the row's mask bytes or keep bytes, with room for kKeepMargin bytes more
};

// The factors by which the caller must still multiply scores and their tangents.
template <class T>
struct PendingFactors {
  T score, tangent;
};

// For the keys `own`, relative to key `first`: replaces the products x = <q, k> by scores, and t = <q', k> + <q, k'> by the tangents of the scores. The caller
// must still multiply scores and tangents by the returned factors. Scores of masked keys become -infinity; tangents of masked keys may be anything.
template <class T>
PendingFactors<T> finish_tangents(const HeadGroup& group, const TangentViews& tangents, const Row& row, const ScoreScale<T>& scale, std::int64_t first, KeyRange own,
                                  T* x, T* t, const RowLines<T>& lines) {
  constexpr int kWidth = kLanes<T>;
  const std::int64_t begin = own.first / kWidth * kWidth, end = round_up(own.last, kWidth);
  T pending = scale.factor;
  if (group.softcap > 0) {
    const T inverse = static_cast<T>(static_cast<double>(scale.factor) / group.softcap), twice = static_cast<T>(-2 / group.softcap);
    for (std::int64_t i = begin; i < end; i += kWidth) {
      const Vector<T> tanh_x = tanh<T>(load_vector(x + i) * inverse), moved = load_vector(t + i) * scale.factor;
      const Vector<T> slope = multiply_add<T>(-tanh_x, tanh_x, broadcast(T{1})), tangent = slope * moved;
      store_vector<T>(slope, lines.softcap_derivative + i);
      store_vector<T>(twice * tanh_x * tangent, lines.curvature + i);
      store_vector<T>(tangent, t + i);
    }
    pending = 1;
  }
  const T of_score = finish_scores<T>(group, row, scale.factor, first, own.first, own.last, x, nullptr, lines.bytes);
  if (kind_of(group, row) == RowKind::uniform) {
    clear(t, begin, end);
  } else if (tangents.bias.data != nullptr) {
    with_storage<T>(group.bias_dtype, tangents.bias.data, [&](auto* data) {
      add_row(row_of(tangents.bias, data, row) + first * tangents.bias.column, tangents.bias.column, own.first, own.last, pending, t);
    });
    pending = 1;
  }
  return {of_score, pending};
}

// Calls f<count>(i, p, score' - centre) for the vectors that contain the keys `own`. Where p is 0, the last argument is 0 too, because tangents of masked keys
// may be NaN.
template <class T, class F>
POLYHEAD_INLINE void for_each_weight(KeyRange own, const RowValues<T>& row, T centre, const PendingFactors<T>& pending, const ScoreScale<T>& scale, const T* x, const T* t,
                                     const F& f) {
  constexpr int kWidth = kLanes<T>;
  for_each_group<T>(own.first / kWidth * kWidth, round_up(own.last, kWidth), [&]<int kCount>(std::int64_t i) {
    Vector<T> p[kCount], tangent[kCount];
#pragma GCC unroll 4
    for (int j = 0; j < kCount; ++j) p[j] = multiply_add<T>(load_vector(x + i + j * kWidth) - row.shift, broadcast(pending.score), broadcast(-row.lse));
    exp_of_difference<kCount>(p, T{0}, scale.natural);
#pragma GCC unroll 4
    for (int j = 0; j < kCount; ++j) {
      p[j] *= row.inverse;
      const Vector<T> moved = multiply_add<T>(load_vector(t + i + j * kWidth), broadcast(pending.tangent), broadcast(-centre));
      tangent[j] = p[j] == T{0} ? Vector<T>{} : moved;
    }
    f.template operator()<kCount>(i, p, tangent);
  });
}

// Returns the attention weight of a row's sink, not yet multiplied by RowValues::inverse.
template <class T>
T sink_weight(const HeadGroup& group, const Row& row, const RowValues<T>& values, const ScoreScale<T>& scale) {
  const T z = sink_of<T>(group, row);
  return z == -kInfinity<T> ? T{0} : exp_of(sink_above(z, values.shift, factor_of_scores<T>(group, scale)) - values.lse, scale);
}

template <class T>
T sink_tangent_of(const TangentViews& tangents, const Row& row) {
  return tangents.sink.data == nullptr ? T{0} : *row_of(tangents.sink, static_cast<const T*>(tangents.sink.data), row);
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
