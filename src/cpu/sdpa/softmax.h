// The two passes over a row of scores. For kernel sources only.
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

// x = exp(factor (x - reference)); returns the sum. Four vectors go through each step together: one alone is a chain of 15 instructions, and
// the scheduler holds few chains at a time.
template <class T>
POLYHEAD_INLINE T exponentiate(T* x, std::int64_t begin, std::int64_t end, T reference, const ExpFactor<T>& factor) {
  constexpr int kTogether = kRegisters >= 32 ? 4 : 1, kWidth = kLanes<T>;
  Vector<T> total{};
  for (; begin + kTogether * kWidth <= end; begin += kTogether * kWidth) {
    Vector<T> p[kTogether];
#pragma GCC unroll 4
    for (int i = 0; i < kTogether; ++i) p[i] = load_vector(x + begin + i * kWidth);
    exp_of_difference<kTogether>(p, reference, factor);
#pragma GCC unroll 4
    for (int i = 0; i < kTogether; ++i) {
      store_vector<T>(p[i], x + begin + i * kWidth);
      total += p[i];
    }
  }
  for (; begin < end; begin += kWidth) {
    Vector<T> p[1] = {load_vector(x + begin)};
    exp_of_difference<1>(p, reference, factor);
    total += p[0];
    store_vector<T>(p[0], x + begin);
  }
  return sum_of_lanes<T>(total);
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
