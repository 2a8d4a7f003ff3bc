#include "support/random.h"

namespace polyhead::test {

StridedTensor::StridedTensor(Tensor memory, std::int64_t start, DType dtype, const Shape& shape, const Strides& strides) : memory_(std::move(memory)) {
  if (memory_.numel() > 0) std::memset(memory_.data<std::uint8_t>(), 0xff, static_cast<std::size_t>(memory_.numel()));
  const auto offset = start * static_cast<std::int64_t>(info(dtype).size);
  view_ = TensorView(memory_.data<std::uint8_t>() + offset, dtype, shape, strides);
}

bool StridedTensor::padding_is_intact() const {
  // Visit the elements in the order of their addresses: sort the axes by stride, largest first. This suffices, because axes of a StridedTensor do not interleave.
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
  std::int64_t run = size;  // number of bytes of contiguous elements
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

bool StridedTensor::is_padding(const std::uint8_t* from, const std::uint8_t* to) {
  for (; to - from >= 8; from += 8) {
    std::uint64_t word;
    std::memcpy(&word, from, 8);
    if (~word != 0) return false;
  }
  return std::all_of(from, to, [](std::uint8_t byte) { return byte == 0xff; });
}

std::int64_t Random::integer(std::int64_t first, std::int64_t last) {
  return first + static_cast<std::int64_t>(generator_() % static_cast<std::uint64_t>(last - first + 1));
}

void Random::fill(TensorView view, double low, double high) {
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

Tensor Random::tensor(DType dtype, const Shape& shape, double low, double high) {
  Tensor tensor(dtype, shape);
  fill(tensor, low, high);
  return tensor;
}

StridedTensor Random::empty_strided(DType dtype, const Shape& shape) {
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

StridedTensor Random::strided(DType dtype, const Shape& shape, double low, double high) {
  StridedTensor tensor = empty_strided(dtype, shape);
  fill(tensor, low, high);
  return tensor;
}

StridedTensor Random::strided_copy(ConstTensorView values) {
  StridedTensor tensor = empty_strided(values.dtype(), values.shape());
  copy(values, tensor);
  return tensor;
}

}  // namespace polyhead::test
