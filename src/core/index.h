// Shapes, and iteration over the elements of strided tensors.
#pragma once

#include <array>

#include "polyhead/tensor_view.h"

namespace polyhead {

// Returns the extents of `shape`, followed by `more`.
inline Shape appended(Shape shape, const Shape& more) {
  for (const std::int64_t extent : more) shape.push_back(extent);
  return shape;
}

// Returns whether a tensor of `shape` can be expanded to `to`.
inline bool broadcasts(const Shape& shape, const Shape& to) {
  if (shape.size() > to.size()) return false;
  for (int axis = 1; axis <= shape.size(); ++axis) {
    if (shape[-axis] != 1 && shape[-axis] != to[-axis]) return false;
  }
  return true;
}

// Returns the position (one index for each axis) whose row-major number in `shape` is `index`.
inline Dims position_at(const Shape& shape, std::int64_t index) {
  Dims position = shape;
  for (int axis = shape.size() - 1; axis >= 0; --axis) {
    position[axis] = index % shape[axis];
    index /= shape[axis];
  }
  return position;
}

// Returns the offset, in elements, of the position whose row-major number in `shape` is `index`.
inline std::int64_t offset_at(const Shape& shape, const Strides& strides, std::int64_t index) {
  std::int64_t offset = 0;
  for (int axis = shape.size() - 1; axis >= 0; --axis) {
    offset += index % shape[axis] * strides[axis];
    index /= shape[axis];
  }
  return offset;
}

// Calls f(offsets) for every position of `shape` in row-major order. offsets[i] is the offset of the position in a tensor with strides[i].
template <std::size_t Count, class F>
void for_each_offset(const Shape& shape, const std::array<Strides, Count>& strides, const F& f) {
  if (numel(shape) == 0) return;
  std::array<std::int64_t, kMaxRank> position{};
  std::array<std::int64_t, Count> offsets{};
  while (true) {
    f(offsets);
    int axis = shape.size() - 1;
    for (; axis >= 0; --axis) {
      auto& at = position[static_cast<std::size_t>(axis)];
      for (std::size_t i = 0; i < Count; ++i) offsets[i] += strides[i][axis];
      if (++at < shape[axis]) break;
      for (std::size_t i = 0; i < Count; ++i) offsets[i] -= shape[axis] * strides[i][axis];
      at = 0;
    }
    if (axis < 0) return;
  }
}

}  // namespace polyhead
