// Random inputs from a seed. They are the same on every machine: the code uses std::mt19937_64, which the C++ standard defines exactly, and computes
// distributions itself, because the results of the standard's distributions differ between libraries.
#pragma once

#include <algorithm>
#include <cstring>
#include <list>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "core/dispatch.h"
#include "core/index.h"
#include "polyhead/tensor.h"

namespace polyhead::test {

// A tensor with gaps between its elements. All bits of the gaps are 1, which is NaN in every floating dtype: a wrong read makes the result NaN, and
// padding_is_intact() finds a wrong write. Elements that are not filled also have all bits 1.
class StridedTensor {
 public:
  StridedTensor(Tensor memory, std::int64_t start, DType dtype, const Shape& shape, const Strides& strides);
  StridedTensor(StridedTensor&&) = default;
  StridedTensor& operator=(StridedTensor&&) = default;

  operator TensorView() const { return view_; }       // NOLINT(google-explicit-constructor)
  operator ConstTensorView() const { return view_; }  // NOLINT(google-explicit-constructor)
  TensorView view() const { return view_; }
  ConstTensorView memory() const { return memory_; }

  // Returns whether all bits of the gaps are still 1.
  bool padding_is_intact() const;

 private:
  static bool is_padding(const std::uint8_t* from, const std::uint8_t* to);

  Tensor memory_;  // bytes
  TensorView view_;
};

inline bool padding_is_intact(const std::list<StridedTensor>& tensors) {
  return std::ranges::all_of(tensors, [](const StridedTensor& tensor) { return tensor.padding_is_intact(); });
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : generator_(seed) {}

  // Returns a uniformly distributed integer in [first, last].
  std::int64_t integer(std::int64_t first, std::int64_t last);
  bool coin() { return integer(0, 1) == 1; }
  double real(double low, double high) { return low + (high - low) * static_cast<double>(generator_() >> 11) * 0x1p-53; }
  template <class T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[integer(0, static_cast<std::int64_t>(choices.size()) - 1)];
  }

  // Fills the view with random numbers. Floating dtypes: uniform in [low, high); integers: uniform in [low, high]; booleans: true or false with equal probability.
  void fill(TensorView view, double low = -1, double high = 1);

  // Returns a filled contiguous tensor.
  Tensor tensor(DType dtype, const Shape& shape, double low = -1, double high = 1);

  // Returns a tensor that is not filled, with axes in a random order in memory, gaps between elements, and strides of either sign. The gaps of a large tensor
  // need at most three times the memory of its elements, because setting and checking gaps takes time.
  StridedTensor empty_strided(DType dtype, const Shape& shape);

  StridedTensor strided(DType dtype, const Shape& shape, double low = -1, double high = 1);

  // Returns a copy of the values with random strides and gaps.
  StridedTensor strided_copy(ConstTensorView values);

 private:
  std::mt19937_64 generator_;
};

}  // namespace polyhead::test
