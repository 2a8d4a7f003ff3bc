// Passes over a row of a map. Vectors of 16 bytes, which every instruction set has: the kernels have computed the row, and a pass over it
// takes a tenth of that time.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

#include "problem/key_set.h"

namespace polyhead {

using TwoDoubles = double __attribute__((vector_size(16)));
using TwoIntegers = std::int64_t __attribute__((vector_size(16)));
inline constexpr std::int64_t kMagnitude = 0x7fffffffffffffff;  // the bits of |x|

// Calls f(i, x, s) for vectors of two neighbours: x = values [s, s + 2), i = 0..3 in turn, so that f may keep four sums, which hide the
// latency of an addition; then one(s) for the last elements.
template <class F, class One>
void for_each_two(const double* values, std::int64_t first, std::int64_t last, const F& f, const One& one) {
  for (; first + 8 <= last; first += 8) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      TwoDoubles x;
      std::memcpy(&x, values + first + 2 * i, sizeof x);
      f(i, x, first + 2 * i);
    }
  }
  for (; first < last; ++first) one(first);
}

inline double sum_of(const double* values, std::int64_t first, std::int64_t last) {
  TwoDoubles sums[4] = {};
  double rest = 0;
  for_each_two(values, first, last, [&](int i, TwoDoubles x, std::int64_t) { sums[i] += x; }, [&](std::int64_t s) { rest += values[s]; });
  const TwoDoubles sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  return sum[0] + sum[1] + rest;
}

// The largest value and 0; a NaN replaces every number.
inline double largest_of(const double* values, std::int64_t first, std::int64_t last) {
  TwoDoubles most[4] = {}, sums[4] = {};
  double largest = 0, rest = 0;
  const auto take = [&](double x) { largest = x > largest ? x : largest; };
  for_each_two(
      values, first, last, [&](int i, TwoDoubles x, std::int64_t) { most[i] = x > most[i] ? x : most[i], sums[i] += x; },
      [&](std::int64_t s) { take(values[s]), rest += values[s]; });
  for (const TwoDoubles& x : most) take(x[0]), take(x[1]);
  const TwoDoubles sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  const double total = sum[0] + sum[1] + rest;
  return total == total ? largest : total;
}

// sum values[s] |s - centre|
inline double sum_of_distances(const double* values, std::int64_t first, std::int64_t last, std::int64_t centre) {
  TwoDoubles sums[4] = {}, distances[4];
  double rest = 0;
  const auto distance = [&](std::int64_t s) { return static_cast<double>(s - centre); };
  for (int i = 0; i < 4; ++i) distances[i] = TwoDoubles{distance(first + 2 * i), distance(first + 2 * i + 1)};
  for_each_two(
      values, first, last,
      [&](int i, TwoDoubles x, std::int64_t) {
        sums[i] += x * (TwoDoubles)((TwoIntegers)distances[i] & kMagnitude);
        distances[i] += 8.0;
      },
      [&](std::int64_t s) { rest += values[s] * (s < centre ? -distance(s) : distance(s)); });
  const TwoDoubles sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  return sum[0] + sum[1] + rest;
}

}  // namespace polyhead
