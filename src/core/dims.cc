#include <string>

#include "core/text.h"
#include "polyhead/tensor_view.h"

namespace polyhead {

Dims::Dims(std::span<const std::int64_t> values) : Dims() {
  require(values.size() <= kMaxRank, "a tensor has at most ", kMaxRank, " dimensions, not ", static_cast<std::int64_t>(values.size()));
  std::copy(values.begin(), values.end(), values_.begin());
  size_ = static_cast<int>(values.size());
}

void Dims::refuse_count(int count) const { fail(ErrorCode::invalid_argument, "no ", count, " dimensions in ", *this); }

void Dims::insert(int axis, std::int64_t value) {
  require(size_ < kMaxRank, "a tensor has at most ", kMaxRank, " dimensions; ", *this, " cannot have another");
  require(0 <= axis && axis <= size_, "no dimension can be inserted at ", axis, " of ", *this);
  std::copy_backward(begin() + axis, end(), end() + 1);
  values_[static_cast<std::size_t>(axis)] = value;
  ++size_;
}

void Dims::erase(int axis) {
  require(0 <= axis && axis < size_, "no dimension ", axis, " in ", *this);
  std::copy(begin() + axis + 1, end(), begin() + axis);
  --size_;
}

std::int64_t numel(const Shape& shape) {
  std::int64_t product = 1;
  bool overflow = false;
  for (const std::int64_t extent : shape) {
    if (extent == 0) return 0;
    overflow |= __builtin_mul_overflow(product, extent, &product);
  }
  require(!overflow, "the extents ", shape, " have a product beyond 2^63 - 1");
  return product;
}

Strides contiguous_strides(const Shape& shape) {
  Strides strides = shape;
  std::int64_t stride = 1;
  const bool none = numel(shape) == 0;
  for (int axis = shape.size() - 1; axis >= 0; --axis) {
    strides[axis] = stride;
    if (!none) stride *= shape[axis];
  }
  return strides;
}

std::string to_string(const Dims& dims) {
  std::string text = "[";
  for (int axis = 0; axis < dims.size(); ++axis) {
    if (axis > 0) text += ',';
    append(text, dims[axis]);
  }
  return text + "]";
}

Shape broadcast_shapes(const Shape& a, const Shape& b) {
  Shape result = a.size() >= b.size() ? a : b;
  const Shape& other = a.size() >= b.size() ? b : a;
  for (int from_end = 1; from_end <= other.size(); ++from_end) {
    const int axis = result.size() - from_end;
    const std::int64_t x = result[axis], y = other[other.size() - from_end];
    require(x == y || x == 1 || y == 1, "shapes ", a, " and ", b, " do not broadcast: ", x, " against ", y);
    if (x == 1) result[axis] = y;
  }
  return result;
}

}  // namespace polyhead
