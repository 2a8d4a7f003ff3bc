// Layer normalisation (Ba, Kiros, Hinton 2016, eq. 4) of one float32 row, which stays in the first-level cache between its passes.
#include "cpu/elementwise/kernels.h"
#include "cpu/vector.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

using Lanes = Vector<float>;
constexpr int kCount = kLanes<float>, kSums = 4;

// The sum of f(i, x[i]): kSums running sums of vectors, which hide the latency of additions, then single elements.
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
  const float mean =
      (added != nullptr ? sum_row(width, x, add) : sum_row(width, x, [](std::int64_t, auto value) { return value; })) / count;
  // The mean is subtracted before squaring: E[x^2] - E[x]^2 would cancel.
  const float variance = sum_row(width, values, [mean](std::int64_t, auto value) { return (value - mean) * (value - mean); }) / count;
  const float inverse = 1 / __builtin_sqrtf(variance + epsilon);
  const auto finish = [mean, inverse, weight, bias, values, y](std::int64_t i, auto like) {
    const auto normalised = (load_like(like, values + i) - mean) * inverse * load_like(like, weight + i);
    put(normalised + load_like(like, bias + i), y + i);
  };
  std::int64_t i = 0;
  for (; i + kCount <= width; i += kCount) finish(i, Lanes{});
  for (; i < width; ++i) finish(i, 0.0f);
}

}  // namespace

extern const NormKernels norm_kernels;
constinit const NormKernels norm_kernels = {normalise_row};

}  // namespace polyhead::cpu::POLYHEAD_ISA
