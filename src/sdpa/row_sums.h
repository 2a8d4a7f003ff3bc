// Sums and maxima over a row of a map. The loops use vectors of 16 bytes, which every instruction set has. Wider vectors would save little: one of these loops
// takes a tenth of the time in which the kernels compute the row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "problem/key_set.h"

namespace polyhead {

using TwoDoubles = double __attribute__((vector_size(16)));
using TwoIntegers = std::int64_t __attribute__((vector_size(16)));
inline constexpr std::int64_t kMagnitude = 0x7fffffffffffffff;  // mask that clears the sign bit of a double

// Calls f(i, x, s) for each two neighbours x = values [s, s + 2), with i = 0, 1, 2, 3 in turn. Then calls one(s) for each of the last elements. f may add to
// four sums, one for each i, so that an addition need not wait for the preceding one.
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

// Returns the largest of 0 and the values, or NaN if any value is NaN.
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

// Sets maxima[i], for i = 0..7, to the largest of 0, values[first + i], values[first + i + 8], ... up to index last - 1. No value may be NaN.
inline void maxima_of_eighths(const double* values, std::int64_t first, std::int64_t last, double* maxima) {
  TwoDoubles most[4] = {};
  for_each_two(values, first, last, [&](int i, TwoDoubles x, std::int64_t) { most[i] = x > most[i] ? x : most[i]; }, [](std::int64_t) {});
  std::memcpy(maxima, most, sizeof most);
  for (std::int64_t s = last - (last - first) % 8; s < last; ++s) maxima[(s - first) % 8] = values[s] > maxima[(s - first) % 8] ? values[s] : maxima[(s - first) % 8];
}

// Returns the smallest and the largest of `count` values. count must be a positive multiple of 8, and no value may be NaN.
inline std::pair<double, double> extremes_of(const double* values, std::int64_t count) {
  TwoDoubles least[4], most[4];
  double smallest[8], largest[8];
  std::memcpy(least, values, sizeof least), std::memcpy(most, values, sizeof most);
  for_each_two(
      values, 0, count, [&](int i, TwoDoubles x, std::int64_t) { least[i] = x < least[i] ? x : least[i], most[i] = x > most[i] ? x : most[i]; }, [](std::int64_t) {});
  std::memcpy(smallest, least, sizeof least), std::memcpy(largest, most, sizeof most);
  return {*std::min_element(smallest, smallest + 8), *std::max_element(largest, largest + 8)};
}

// Returns how many of `count` values, a multiple of 8, are at least `bound`.
inline std::int64_t count_of(const double* values, std::int64_t count, double bound) {
  TwoIntegers counts[4] = {};
  for_each_two(values, 0, count, [&](int i, TwoDoubles x, std::int64_t) { counts[i] -= x >= bound; }, [](std::int64_t) {});
  const TwoIntegers sum = (counts[0] + counts[1]) + (counts[2] + counts[3]);
  return sum[0] + sum[1];
}

// Returns the sum of values[s] |s - centre|.
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
