// Seeded inputs: the same on every machine, because only std::mt19937_64 itself is fixed by the standard, not its distributions.
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

// A view into a larger piece of memory. All bits of the bytes between the elements are 1, which is NaN in every floating dtype: a stray read shows in the
// result, and padding_is_intact() finds a stray write. Elements that are not filled also have all bits 1.
class StridedTensor {
 public:
  StridedTensor(Tensor memory, std::int64_t start, DType dtype, const Shape& shape, const Strides& strides);
  StridedTensor(StridedTensor&&) = default;
  StridedTensor& operator=(StridedTensor&&) = default;

  operator TensorView() const { return view_; }       // NOLINT(google-explicit-constructor)
  operator ConstTensorView() const { return view_; }  // NOLINT(google-explicit-constructor)
  TensorView view() const { return view_; }
  ConstTensorView memory() const { return memory_; }

  // Reads only the bytes between the elements.
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

  // Uniform in [first, last].
  std::int64_t integer(std::int64_t first, std::int64_t last);
  bool coin() { return integer(0, 1) == 1; }
  double real(double low, double high) { return low + (high - low) * static_cast<double>(generator_() >> 11) * 0x1p-53; }
  template <class T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[integer(0, static_cast<std::int64_t>(choices.size()) - 1)];
  }

  // Floating: uniform in [low, high); integers: uniform in [low, high]; booleans: a coin.
  void fill(TensorView view, double low = -1, double high = 1);

  // Returns a filled contiguous tensor.
  Tensor tensor(DType dtype, const Shape& shape, double low = -1, double high = 1);

  // Returns a tensor that is not filled, with axes in a random order in memory, gaps between elements, and strides of either sign. Gaps of a large tensor
  // take at most three times the memory of its elements, because clearing and checking gaps takes time.
  StridedTensor empty_strided(DType dtype, const Shape& shape);

  StridedTensor strided(DType dtype, const Shape& shape, double low = -1, double high = 1);

  // Returns the same values in a random layout.
  StridedTensor strided_copy(ConstTensorView values);

 private:
  std::mt19937_64 generator_;
};

}  // namespace polyhead::test
