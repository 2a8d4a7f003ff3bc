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

// A view into a larger piece of memory whose other bytes are all ones: NaN in every floating dtype, so a stray read shows in the result,
// and a stray write is found by padding_is_intact(). A view that was not filled yet holds the same.
class StridedTensor {
 public:
  StridedTensor(Tensor memory, std::int64_t start, DType dtype, const Shape& shape, const Strides& strides) : memory_(std::move(memory)) {
    if (memory_.numel() > 0) std::memset(memory_.data<std::uint8_t>(), 0xff, static_cast<std::size_t>(memory_.numel()));
    const auto offset = start * static_cast<std::int64_t>(info(dtype).size);
    view_ = TensorView(memory_.data<std::uint8_t>() + offset, dtype, shape, strides);
  }
  StridedTensor(StridedTensor&&) = default;
  StridedTensor& operator=(StridedTensor&&) = default;

  operator TensorView() const { return view_; }       // NOLINT(google-explicit-constructor)
  operator ConstTensorView() const { return view_; }  // NOLINT(google-explicit-constructor)
  TensorView view() const { return view_; }
  ConstTensorView memory() const { return memory_; }

  // Reads only the bytes between the elements.
  bool padding_is_intact() const {
    // With the largest stride first, elements come in the order of their addresses, because they lie apart.
    const auto size = static_cast<std::int64_t>(info(view_.dtype()).size);
    std::vector<int> order(static_cast<std::size_t>(view_.rank()));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, {}, [&](int axis) { return std::pair(-std::abs(view_.stride(axis)), view_.extent(axis)); });
    Shape shape = view_.shape();
    Strides strides = view_.strides();
    const auto* first = static_cast<const std::uint8_t*>(view_.data());
    for (int i = 0; i < view_.rank(); ++i) {
      const int axis = order[static_cast<std::size_t>(i)];
      shape[i] = view_.extent(axis), strides[i] = std::abs(view_.stride(axis));
      if (view_.stride(axis) < 0 && view_.extent(axis) > 0) first += (view_.extent(axis) - 1) * view_.stride(axis) * size;
    }
    std::int64_t run = size;  // bytes without a gap
    if (view_.rank() > 0 && strides[-1] == 1) run *= std::exchange(shape[-1], std::min<std::int64_t>(1, shape[-1]));
    const std::uint8_t* at = memory_.data<std::uint8_t>();
    const std::uint8_t* const end = at + memory_.numel();
    bool intact = true;
    for_each_offset<1>(shape, {strides}, [&](const auto& offset) {
      const std::uint8_t* const element = first + offset[0] * size;
      intact &= is_padding(at, element);
      at = element + run;
    });
    return intact && is_padding(at, end);
  }

 private:
  static bool is_padding(const std::uint8_t* from, const std::uint8_t* to) {
    for (; to - from >= 8; from += 8) {
      std::uint64_t word;
      std::memcpy(&word, from, 8);
      if (~word != 0) return false;
    }
    return std::all_of(from, to, [](std::uint8_t byte) { return byte == 0xff; });
  }

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
  std::int64_t integer(std::int64_t first, std::int64_t last) {
    return first + static_cast<std::int64_t>(generator_() % static_cast<std::uint64_t>(last - first + 1));
  }
  bool coin() { return integer(0, 1) == 1; }
  double real(double low, double high) { return low + (high - low) * static_cast<double>(generator_() >> 11) * 0x1p-53; }
  template <class T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[integer(0, static_cast<std::int64_t>(choices.size()) - 1)];
  }

  // Floating: uniform in [low, high); integers: uniform in [low, high]; booleans: a coin.
  void fill(TensorView view, double low = -1, double high = 1) {
    dispatch_any(view.dtype(), [&](auto type) {
      using T = typename decltype(type)::type;
      T* data = view.data<T>();
      for_each_offset<1>(view.shape(), {view.strides()}, [&](const auto& at) {
        if constexpr (std::is_same_v<T, bool>) {
          data[at[0]] = coin();
        } else if constexpr (std::is_integral_v<T>) {
          data[at[0]] = static_cast<T>(integer(static_cast<std::int64_t>(low), static_cast<std::int64_t>(high)));
        } else {
          data[at[0]] = store<T>(real(low, high));
        }
      });
    });
  }

  // Contiguous.
  Tensor tensor(DType dtype, const Shape& shape, double low = -1, double high = 1) {
    Tensor tensor(dtype, shape);
    fill(tensor, low, high);
    return tensor;
  }

  // Axes in a random order in memory, gaps between them, strides of either sign. Not filled. Of a large tensor the gaps are at most three
  // times its elements: more is memory to clear and to check, and no other layout.
  StridedTensor empty_strided(DType dtype, const Shape& shape) {
    std::vector<int> order(static_cast<std::size_t>(shape.size()));
    std::iota(order.begin(), order.end(), 0);
    if (coin()) {
      for (std::size_t i = order.size(); i > 1; --i)
        std::swap(order[i - 1], order[static_cast<std::size_t>(integer(0, static_cast<std::int64_t>(i) - 1))]);
    }
    Strides strides = shape;
    constexpr std::int64_t kLarge = 4096, kMostWithGaps = 4;
    const bool large = numel(shape) > kLarge;
    std::int64_t covered = 1, dense = 1, start = integer(0, 3);
    for (auto axis = order.rbegin(); axis != order.rend(); ++axis) {
      std::int64_t stride = covered * pick<std::int64_t>({1, 1, 2}) + pick<std::int64_t>({0, 0, 1, 3});
      if (large && stride > kMostWithGaps * dense) stride = covered;
      dense *= shape[*axis];
      const std::int64_t reach = std::max<std::int64_t>(0, shape[*axis] - 1) * stride;
      const bool backwards = integer(0, 3) == 0;
      strides[*axis] = backwards ? -stride : stride;
      if (backwards) start += reach;
      covered += reach;
    }
    const std::int64_t elements = integer(0, 3) + covered + 3;
    return {Tensor(DType::u8, {elements * static_cast<std::int64_t>(info(dtype).size)}), start, dtype, shape, strides};
  }

  StridedTensor strided(DType dtype, const Shape& shape, double low = -1, double high = 1) {
    StridedTensor tensor = empty_strided(dtype, shape);
    fill(tensor, low, high);
    return tensor;
  }

  // The same values in another layout.
  StridedTensor strided_copy(ConstTensorView values) {
    StridedTensor tensor = empty_strided(values.dtype(), values.shape());
    copy(values, tensor);
    return tensor;
  }

 private:
  std::mt19937_64 generator_;
};

}  // namespace polyhead::test
