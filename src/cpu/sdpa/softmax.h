// Loops over a row of scores in memory: maximum, exponential, and derivative of the softmax. Only kernel sources (*_kernel.cc) include this file.
#pragma once

#include "cpu/sdpa/rows.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// Returns the largest element of x in [begin, end), which are whole vectors.
template <class T>
POLYHEAD_INLINE T largest_of(const T* x, std::int64_t begin, std::int64_t end) {
  constexpr int kWidth = kLanes<T>;
  Vector<T> most[4];  // four maxima, so that the processor need not wait for the result of each comparison
  for (Vector<T>& one : most) one = broadcast(-kInfinity<T>);
  for (; begin + 4 * kWidth <= end; begin += 4 * kWidth) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) most[i] = larger(most[i], load_vector(x + begin + i * kWidth));
  }
  for (; begin < end; begin += kWidth) most[0] = larger(most[0], load_vector(x + begin));
  return largest_lane<T>(larger(larger(most[0], most[1]), larger(most[2], most[3])));
}

// Returns the sum of the vectors of one row of a tile, lane by lane. largest_of_vectors() returns their maximum.
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

// x holds the scores of the keys from key `begin` on. Sets the scores of keys outside of `own` to -infinity.
template <class T, int Columns>
POLYHEAD_INLINE void keep_between(KeyRange own, std::int64_t begin, Vector<T> (&x)[Columns]) {
  Vector<Bits<T>> key = lane_numbers<T>();
  constexpr std::int64_t kKeys = Columns * kLanes<T>;
  const auto low = static_cast<Bits<T>>(smaller(larger(own.first - begin, 0), kKeys));
  const auto high = static_cast<Bits<T>>(smaller(larger(own.last - begin, 0), kKeys));
#pragma GCC unroll 4
  for (int j = 0; j < Columns; ++j, key += kLanes<T>) x[j] = ((key >= low) & (key < high)) ? x[j] : broadcast(-kInfinity<T>);
}

// Calls f<count>(i) for the vectors in [begin, end), `count` vectors at a time. An exponential is a chain of 15 instructions, each of which waits for the one
// before. With four vectors at a time the processor works on several chains at once.
template <class T, class F>
POLYHEAD_INLINE void for_each_group(std::int64_t begin, std::int64_t end, const F& f) {
  constexpr int kTogether = kRegisters >= 32 ? 4 : 1, kWidth = kLanes<T>;
  for (; begin + kTogether * kWidth <= end; begin += kTogether * kWidth) f.template operator()<kTogether>(begin);
  for (; begin < end; begin += kWidth) f.template operator()<1>(begin);
}

// The form in which exp_of_score() takes lse: multiplied by log2(e) if there is a power_of_difference() for T, else unchanged.
template <class T>
using LseReference = std::conditional_t<kHasPowerOfDifference<T>, PowerReference, T>;

template <class T>
POLYHEAD_INLINE LseReference<T> lse_reference(T lse, [[maybe_unused]] const ScoreScale<T>& scale) {
  if constexpr (kHasPowerOfDifference<T>) {
    return power_reference(lse, scale.scaled);
  } else {
    return lse;
  }
}

// Replaces the products x by exp(scale.factor x - lse). Use it only for problems without softcap and bias.
template <int kCount, class T, class V>
POLYHEAD_INLINE void exp_of_score(V (&x)[kCount], LseReference<T> lse, const ScoreScale<T>& scale) {
  if constexpr (kHasPowerOfDifference<T>) {
    power_of_difference<kCount>(x, lse, scale.scaled.high);
  } else {
#pragma GCC unroll 4
    // T{0} - lse instead of -lse, because GCC would turn the sign of NaN in some loops.
    for (int j = 0; j < kCount; ++j) x[j] = multiply_add<T>(x[j], broadcast(scale.factor), broadcast(T{0} - lse));
    exp_of_difference<kCount>(x, T{0}, scale.natural);
  }
}

// Replaces x by e = exp(factor (x - reference)) and returns the sum of e. `moment`, if given, receives the sum of e (x - reference), from which the entropy is
// computed.
template <bool kMoment = false, class T>
POLYHEAD_INLINE T exponentiate(T* x, std::int64_t begin, std::int64_t end, T reference, const ExpFactor<T>& factor, T* moment = nullptr) {
  constexpr int kWidth = kLanes<T>;
  Vector<T> total{}, of_moment{};
  for_each_group<T>(begin, end, [&]<int kCount>(std::int64_t i) {
    Vector<T> p[kCount];
#pragma GCC unroll 4
    for (int j = 0; j < kCount; ++j) p[j] = load_vector(x + i + j * kWidth);
    exp_of_difference<kCount>(p, reference, factor);
#pragma GCC unroll 4
    for (int j = 0; j < kCount; ++j) {
      // A masked key has p = 0 and x - reference = -infinity, whose product would be NaN.
      if constexpr (kMoment) of_moment += p[j] == T{0} ? Vector<T>{} : p[j] * (load_vector(x + i + j * kWidth) - reference);
      store_vector<T>(p[j], x + i + j * kWidth);
      total += p[j];
    }
  });
  if constexpr (kMoment) *moment = sum_of_lanes<T>(of_moment);
  return sum_of_lanes<T>(total);
}

// Returns d_score = p (d_p - delta), or 0 where p = 0, because d_p of a masked key may be NaN.
template <class T>
POLYHEAD_INLINE Vector<T> differentiate_score(Vector<T> p, Vector<T> d_p, T delta) {
  return p == T{0} ? Vector<T>{} : p * (d_p - delta);
}

// Returns the gradient of a sink logit, d_sink = -p_sink delta (docs/maths.md, eq. 7a).
template <class T>
POLYHEAD_INLINE T differentiate_sink(T p, T delta) {
  return p == 0 ? T{0} : -p * delta;
}

// The sums of p and of d_score over a row, including the row's sink. Without rounding errors these sums are 1 and 0. If all keys of a row lie in one key block,
// p and d_score are corrected so that the sums become 1 and 0, which cancels the rounding errors of lse and of delta = <d_out, out>.
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
    // Do not divide by a sum that is NaN or infinite: a NaN sum would make p of every key NaN, an infinite sum would make every finite p 0.
    p = sum * T{0} == 0 ? 1 / sum : T{1};
    rest = of_d_score * p;
  }
};

// Divides p by the sum of p, and corrects d_score so that the sum of d_score is 0, for whole vectors of the row.
template <class T>
POLYHEAD_INLINE void normalise_row(std::int64_t begin, std::int64_t end, const RowFactors<T>& factors, T* p, T* d_score) {
  constexpr int kWidth = kLanes<T>;
  for_each_group<T>(begin, end, [&]<int kCount>(std::int64_t i) {
#pragma GCC unroll 4
    for (int j = 0; j < kCount; ++j) {
      T *p_at = p + i + j * kWidth, *d_at = d_score + i + j * kWidth;
      const Vector<T> old = load_vector(p_at), d = multiply_add<T>(-old, broadcast(factors.rest), load_vector(d_at)) * factors.p;
      store_vector<T>(old * factors.p, p_at);
      // A masked key (p = 0) gets 0 even if factors.rest is NaN.
      store_vector<T>(old == T{0} ? Vector<T>{} : d, d_at);
    }
  });
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
