// Passes over a row of scores: the largest, the exponential, the softmax's derivative. For kernel sources only.
#pragma once

#include "cpu/sdpa/rows.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// The largest of x [begin, end), whole vectors.
template <class T>
POLYHEAD_INLINE T largest_of(const T* x, std::int64_t begin, std::int64_t end) {
  constexpr int kWidth = kLanes<T>;
  Vector<T> most[4];  // the latency of a comparison is four of them
  for (Vector<T>& one : most) one = broadcast(-kInfinity<T>);
  for (; begin + 4 * kWidth <= end; begin += 4 * kWidth) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) most[i] = larger(most[i], load_vector(x + begin + i * kWidth));
  }
  for (; begin < end; begin += kWidth) most[0] = larger(most[0], load_vector(x + begin));
  return largest_lane<T>(larger(larger(most[0], most[1]), larger(most[2], most[3])));
}

// A row of a tile.
template <class T, int Columns>
POLYHEAD_INLINE Vector<T> sum_of_vectors(const Vector<T> (&x)[Columns]) {
  Vector<T> sum = x[0];
#pragma GCC unroll 4
  for (int j = 1; j < Columns; ++j) sum += x[j];
  return sum;
}
template <class T, int Columns>
POLYHEAD_INLINE Vector<T> largest_of_vectors(const Vector<T> (&x)[Columns]) {
  Vector<T> most = x[0];
#pragma GCC unroll 4
  for (int j = 1; j < Columns; ++j) most = larger(x[j], most);
  return most;
}

// Scores of the keys begin, begin + 1, ...: -infinity outside of `own`.
template <class T, int Columns>
POLYHEAD_INLINE void keep_between(Span own, std::int64_t begin, Vector<T> (&x)[Columns]) {
  Vector<Bits<T>> key = lane_numbers<T>();
  constexpr std::int64_t kKeys = Columns * kLanes<T>;
  const auto low = static_cast<Bits<T>>(smaller(larger(own.first - begin, 0), kKeys));
  const auto high = static_cast<Bits<T>>(smaller(larger(own.last - begin, 0), kKeys));
#pragma GCC unroll 4
  for (int j = 0; j < Columns; ++j, key += kLanes<T>) x[j] = (key >= low) & (key < high) ? x[j] : broadcast(-kInfinity<T>);
}

// f<count>(i) for i in [begin, end), `count` vectors at a time: one alone is a chain of 15 instructions, and the scheduler holds few
// chains.
template <class T, class F>
POLYHEAD_INLINE void for_each_group(std::int64_t begin, std::int64_t end, const F& f) {
  constexpr int kTogether = kRegisters >= 32 ? 4 : 1, kWidth = kLanes<T>;
  for (; begin + kTogether * kWidth <= end; begin += kTogether * kWidth) f.template operator()<kTogether>(begin);
  for (; begin < end; begin += kWidth) f.template operator()<1>(begin);
}

// Products become exp(score - lse).
template <int kCount, class T, class V>
POLYHEAD_INLINE void exp_of_score(V (&x)[kCount], T lse, const ScoreScale<T>& scale) {
  if constexpr (kHasPowerOfDifference<T>) {
    power_of_difference<kCount>(x, lse * scale.natural.high, scale.scaled.high);
  } else {
#pragma GCC unroll 4
    for (int j = 0; j < kCount; ++j) x[j] = x[j] * scale.factor - lse;
    exp_of_difference<kCount>(x, T{0}, scale.natural);
  }
}

// x = exp(factor (x - reference)); returns the sum.
template <class T>
POLYHEAD_INLINE T exponentiate(T* x, std::int64_t begin, std::int64_t end, T reference, const ExpFactor<T>& factor) {
  constexpr int kWidth = kLanes<T>;
  Vector<T> total{};
  for_each_group<T>(begin, end, [&]<int kCount>(std::int64_t i) {
    Vector<T> p[kCount];
#pragma GCC unroll 4
    for (int j = 0; j < kCount; ++j) p[j] = load_vector(x + i + j * kWidth);
    exp_of_difference<kCount>(p, reference, factor);
#pragma GCC unroll 4
    for (int j = 0; j < kCount; ++j) {
      store_vector<T>(p[j], x + i + j * kWidth);
      total += p[j];
    }
  });
  return sum_of_lanes<T>(total);
}

// x becomes p = x / sum, y becomes factor p (y - delta); returns the sum of y.
template <class T>
POLYHEAD_INLINE T differentiate_softmax(std::int64_t begin, std::int64_t end, T sum, T delta, T factor, T* x, T* y) {
  Vector<T> sums[4] = {};
  constexpr int kWidth = kLanes<T>;
  const T reciprocal = 1 / sum;
  for_each_group<T>(begin, end, [&]<int kCount>(std::int64_t i) {
#pragma GCC unroll 4
    for (int j = 0; j < kCount; ++j) {
      T *p_at = x + i + j * kWidth, *y_at = y + i + j * kWidth;
      Vector<T> p = load_vector(p_at);
      p = divide<T>(p, sum, reciprocal);
      const Vector<T> d = p == T{0} ? Vector<T>{} : p * (load_vector(y_at) - delta);
      sums[j] += d;
      store_vector<T>(p, p_at);
      store_vector<T>(d * factor, y_at);
    }
  });
  return sum_of_lanes<T>((sums[0] + sums[1]) + (sums[2] + sums[3])) * factor;
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
