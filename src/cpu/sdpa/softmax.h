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
POLYHEAD_INLINE void keep_between(KeyRange own, std::int64_t begin, Vector<T> (&x)[Columns]) {
  Vector<Bits<T>> key = lane_numbers<T>();
  constexpr std::int64_t kKeys = Columns * kLanes<T>;
  const auto low = static_cast<Bits<T>>(smaller(larger(own.first - begin, 0), kKeys));
  const auto high = static_cast<Bits<T>>(smaller(larger(own.last - begin, 0), kKeys));
#pragma GCC unroll 4
  for (int j = 0; j < Columns; ++j, key += kLanes<T>) x[j] = ((key >= low) & (key < high)) ? x[j] : broadcast(-kInfinity<T>);
}

// f<count>(i) for i in [begin, end), `count` vectors at a time: each is a chain of 15 dependent instructions, and four hide its latency.
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

// d_score = p (d_p - delta); d_p of a masked key may be NaN.
template <class T>
POLYHEAD_INLINE Vector<T> differentiate_score(Vector<T> p, Vector<T> d_p, T delta) {
  return p == T{0} ? Vector<T>{} : p * (d_p - delta);
}

// A row that lies wholly in this block is renormalised with its exact sums of p and d_score, which should be 1 and 0. That cancels the rounding
// of lse and of delta = <d_out, out>.
template <class T>
struct RowSums {
  Vector<T> p, d_score;

  template <int kCount>
  POLYHEAD_INLINE void add(const Vector<T> (&of_p)[kCount], const Vector<T> (&of_d_score)[kCount]) {
    p += sum_of_vectors<T>(of_p), d_score += sum_of_vectors<T>(of_d_score);
  }
};

template <class T>
struct RowFactors {
  T p, rest;

  RowFactors() = default;
  POLYHEAD_INLINE explicit RowFactors(const RowSums<T>& sums) {
    const T sum = sum_of_lanes<T>(sums.p), of_d_score = sum_of_lanes<T>(sums.d_score);
    p = sum * T{0} == 0 ? 1 / sum : T{1};  // NaN of p stays with the keys that have it
    rest = of_d_score * p;
  }
};

// For whole vectors of the row.
template <class T>
POLYHEAD_INLINE void normalise_row(std::int64_t begin, std::int64_t end, const RowFactors<T>& factors, T* p, T* d_score) {
  constexpr int kWidth = kLanes<T>;
  for_each_group<T>(begin, end, [&]<int kCount>(std::int64_t i) {
#pragma GCC unroll 4
    for (int j = 0; j < kCount; ++j) {
      T *p_at = p + i + j * kWidth, *d_at = d_score + i + j * kWidth;
      // One product before the difference: of two the compiler may fuse either one, depending on the loop.
      const Vector<T> old = load_vector(p_at), d = (load_vector(d_at) - old * factors.rest) * factors.p;
      store_vector<T>(old * factors.p, p_at);
      store_vector<T>(old == T{0} ? Vector<T>{} : d, d_at);  // the row's sum may be NaN
    }
  });
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
