// Layer normalisation (Ba, Kiros, Hinton 2016, eq. 4) and RMS normalisation (Zhang and Sennrich 2019, eq. 4) of one float32 row, and their gradients for a few
// rows at a time. So few rows stay in the first-level cache from one loop over them to the next.
#include "cpu/elementwise/kernels.h"
#include "cpu/vector.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

using Lanes = Vector<float>;
constexpr int kCount = kLanes<float>, kSums = 4;

// Returns the sum of f(i, x[i]). Several running sums of vectors (kSums) let the processor begin an addition before the preceding one ends. Single elements
// at the end of the row are added last.
template <class F>
POLYHEAD_INLINE float sum_row(std::int64_t width, const float* x, const F& f) {
  Lanes sums[kSums] = {};
  std::int64_t i = 0;
  for (; i + kSums * kCount <= width; i += kSums * kCount) {
#pragma GCC unroll 4
    for (int j = 0; j < kSums; ++j) sums[j] += f(i + j * kCount, load_vector(x + i + j * kCount));
  }
  for (; i + kCount <= width; i += kCount) sums[0] += f(i, load_vector(x + i));
  float rest = 0;
  for (; i < width; ++i) rest += f(i, x[i]);
  return sum_of_lanes<float>((sums[0] + sums[1]) + (sums[2] + sums[3])) + rest;
}

POLYHEAD_INLINE Lanes load_like(Lanes, const float* from) { return load_vector(from); }
POLYHEAD_INLINE float load_like(float, const float* from) { return *from; }
POLYHEAD_INLINE void put(Lanes x, float* to) { store_vector<float>(x, to); }
POLYHEAD_INLINE void put(float x, float* to) { *to = x; }

// Returns 1 / sqrt(variance + epsilon). The mean is subtracted before squaring, because E[x^2] - E[x]^2 would cancel.
POLYHEAD_INLINE float inverse_deviation(std::int64_t width, const float* x, float mean, float epsilon) {
  const float squares = sum_row(width, x, [mean](std::int64_t, auto value) { return (value - mean) * (value - mean); });
  return 1 / __builtin_sqrtf(squares / static_cast<float>(width) + epsilon);
}

void normalise_row(const NormRow& row) {
  const std::int64_t width = row.width;
  const float epsilon = row.epsilon, *const weight = row.weight, *const bias = row.bias, *const x = row.x, *const added = row.added;
  float *const sums = row.sums, *const y = row.y;
  const auto count = static_cast<float>(width);
  const auto add = [added, sums](std::int64_t i, auto value) {
    value += load_like(value, added + i);
    put(value, sums + i);
    return value;
  };
  const float* values = added != nullptr ? sums : x;
  float sum = 0;
  if (added != nullptr) {
    sum = sum_row(width, x, add);
  } else if (row.centred) {
    sum = sum_row(width, x, [](std::int64_t, auto value) { return value; });
  }
  const float mean = row.centred ? sum / count : 0;
  const float inverse = inverse_deviation(width, values, mean, epsilon);
  const auto finish = [mean, inverse, weight, bias, values, y](std::int64_t i, auto like) {
    const auto normalised = (load_like(like, values + i) - mean) * inverse * load_like(like, weight + i);
    put(normalised + load_like(like, bias + i), y + i);
  };
  std::int64_t i = 0;
  for (; i + kCount <= width; i += kCount) finish(i, Lanes{});
  for (; i < width; ++i) finish(i, 0.0f);
}

// Sums over a whole row that the row's gradient needs.
struct RowSums {
  float mean, inverse, d_y_mean, d_y_along;  // for x: mean and 1 / deviation; for g = d_y weight: mean(g), and mean(g n) / deviation
};

POLYHEAD_INLINE RowSums sums_of_row(const NormBackwardRows& all, int row) {
  const float *const x = all.x[row], *const d_y = all.d_y[row], *const weight = all.weight;
  const auto count = static_cast<float>(all.width);
  const float mean = all.centred ? sum_row(all.width, x, [](std::int64_t, auto value) { return value; }) / count : 0;
  const float inverse = inverse_deviation(all.width, x, mean, all.epsilon);
  if (all.d_x[0] == nullptr) return {mean, inverse, 0, 0};
  const auto weighted = [weight](std::int64_t i, auto value) { return value * load_like(value, weight + i); };
  const float d_y_mean = all.centred ? sum_row(all.width, d_y, weighted) / count : 0;
  const float along = sum_row(all.width, d_y, [=](std::int64_t i, auto value) {
    return value * load_like(value, weight + i) * (load_like(value, x + i) - mean);
  });
  return {mean, inverse, d_y_mean, along * inverse * inverse / count};
}

POLYHEAD_INLINE void add_to(float x, double* to) { *to += static_cast<double>(x); }
POLYHEAD_INLINE void add_to(Lanes x, double* to) {
  typedef double Wide __attribute__((vector_size(2 * POLYHEAD_VECTOR_BYTES), aligned(alignof(double)), may_alias));
  *reinterpret_cast<Wide*>(to) += __builtin_convertvector(x, Wide);
}

// Sums the columns of at most kRows rows in float32 and adds this sum to d_weight and d_bias in float64: over many rows terms may cancel, and float32 would be
// too inexact.
template <class V>
POLYHEAD_INLINE void backward_columns(const NormBackwardRows& all, const RowSums (&sums)[NormBackwardRows::kRows], std::int64_t i) {
  V d_weight{}, d_bias{};
  for (int row = 0; row < all.rows; ++row) {
    const RowSums& s = sums[row];
    const V d_y = load_like(V{}, all.d_y[row] + i), centred = load_like(V{}, all.x[row] + i) - s.mean;
    d_weight += d_y * (centred * s.inverse);
    d_bias += d_y;
    if (all.d_x[0] == nullptr) continue;
    float* const to = all.d_x[row] + i;
    const V d_x = (d_y * load_like(V{}, all.weight + i) - s.d_y_mean - centred * s.d_y_along) * s.inverse;
    put(all.add ? d_x + load_like(V{}, to) : d_x, to);
  }
  if (all.d_weight == nullptr) return;
  add_to(d_weight, all.d_weight + i);
  if (all.d_bias != nullptr) add_to(d_bias, all.d_bias + i);
}

void backward_rows(const NormBackwardRows& all) {
  RowSums sums[NormBackwardRows::kRows];
  for (int row = 0; row < all.rows; ++row) sums[row] = sums_of_row(all, row);
  std::int64_t i = 0;
  for (; i + kCount <= all.width; i += kCount) backward_columns<Lanes>(all, sums, i);
  for (; i < all.width; ++i) backward_columns<float>(all, sums, i);
}

}  // namespace

extern const NormKernels norm_kernels;
constinit const NormKernels norm_kernels = {normalise_row, backward_rows};

}  // namespace polyhead::cpu::POLYHEAD_ISA
