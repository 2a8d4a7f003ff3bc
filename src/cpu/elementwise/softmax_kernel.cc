// Softmax over one row of logits, in several loops over the row. The row may be as long as a vocabulary.
#include "cpu/elementary.h"
#include "cpu/elementwise/kernels.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

constexpr int kVectors = 4;            // number of vectors computed at once, so that the processor need not wait for each result
constexpr std::int64_t kBlock = 1024;  // number of elements that are summed in vectors of T; the sums of such blocks are added in float64

// Calls f(i, values) for each group of kVectors vectors of x in [first, last); i is the index of the group's first element. If the last group is incomplete, it
// is copied to a buffer and filled up with `filling`.
template <class T, class F>
POLYHEAD_INLINE void for_each_vectors(std::int64_t first, std::int64_t last, const T* x, T filling, const F& f) {
  constexpr int kStep = kVectors * kLanes<T>;
  for (std::int64_t i = first; i < last; i += kStep) {
    Vector<T> values[kVectors];
    if (i + kStep <= last) {
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) values[j] = load_vector(x + i + j * kLanes<T>);
    } else {
      T rest[kStep];
      for (int j = 0; j < kStep; ++j) rest[j] = i + j < last ? x[i + j] : filling;
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) values[j] = load_vector(rest + j * kLanes<T>);
    }
    f(i, values);
  }
}

template <class T>
POLYHEAD_INLINE void put(const Vector<T> (&values)[kVectors], std::int64_t i, std::int64_t last, T* to) {
  constexpr int kStep = kVectors * kLanes<T>;
  if (i + kStep <= last) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) store_vector<T>(values[j], to + i + j * kLanes<T>);
    return;
  }
  T rest[kStep];
#pragma GCC unroll 4
  for (int j = 0; j < kVectors; ++j) store_vector<T>(values[j], rest + j * kLanes<T>);
  for (int j = 0; i + j < last; ++j) to[i + j] = rest[j];
}

template <class T>
POLYHEAD_INLINE double sum_of(const Vector<T> (&x)[kVectors]) {
  return static_cast<double>(sum_of_lanes<T>((x[0] + x[1]) + (x[2] + x[3])));
}

template <class T>
SoftmaxRow<T> exps(std::int64_t count, const T* x, T* y) {
  constexpr T kLowest = -__builtin_huge_val();
  const ExpFactor<T> factor(1);
  Vector<T> largest[kVectors];
#pragma GCC unroll 4
  for (int j = 0; j < kVectors; ++j) largest[j] = broadcast(kLowest);
  for_each_vectors<T>(0, count, x, kLowest, [&](std::int64_t, const Vector<T>(&values)[kVectors]) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) largest[j] = larger(values[j], largest[j]);
  });
  const T top = largest_lane<T>(larger(larger(largest[0], largest[1]), larger(largest[2], largest[3])));
  SoftmaxRow<T> row{.largest = top};
  for (std::int64_t first = 0; first < count; first += kBlock) {
    const std::int64_t last = first + kBlock < count ? first + kBlock : count;
    Vector<T> sums[kVectors] = {}, differences[kVectors] = {};
    // The last group of vectors is filled up with `top`, the largest element, for which x - largest is 0.
    for_each_vectors<T>(first, last, x, top, [&](std::int64_t i, Vector<T>(&values)[kVectors]) {
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) {
        values[j] -= top;
        differences[j] += values[j];
      }
      exp_of_negative<T, kVectors>(values, factor);
      if (last - i < kVectors * kLanes<T>) {
        for (int j = 0; j < kVectors; ++j) {
          const auto left = static_cast<Bits<T>>(last - i - j * kLanes<T>);
          values[j] = lane_numbers<T>() < left ? values[j] : Vector<T>{};
        }
      }
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) sums[j] += values[j];
      if (y != nullptr) put<T>(values, i, last, y);
    });
    row.exps += sum_of<T>(sums);
    row.differences += sum_of<T>(differences);
  }
  return row;
}

template <class T>
void scale(std::int64_t count, T factor, T added, T* y) {
  for_each_vectors<T>(0, count, y, T{0}, [&](std::int64_t i, Vector<T>(&values)[kVectors]) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) values[j] = values[j] * factor + added;
    put<T>(values, i, count, y);
  });
}

}  // namespace

extern const SoftmaxKernels softmax_kernels;
constinit const SoftmaxKernels softmax_kernels = {{exps<float>, scale<float>}, {exps<double>, scale<double>}};

}  // namespace polyhead::cpu::POLYHEAD_ISA
