#include "polyhead/tensor_view.h"

#include "core/text.h"

namespace polyhead {
namespace {

template <class Void>
Void* advance(Void* data, DType dtype, std::int64_t elements) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
  return data == nullptr ? data : static_cast<Byte*>(data) + elements * static_cast<std::int64_t>(info(dtype).size);
}

void require_extents(const Shape& shape) {
  for (const std::int64_t extent : shape) require(extent >= 0, "a tensor's extents must not be negative: shape ", shape);
}

}  // namespace

template <class Void>
BasicTensorView<Void>::BasicTensorView(Void* data, DType dtype, const Shape& shape, const Strides& strides)
    : data_(data), shape_(shape), strides_(strides), dtype_(dtype), present_(true) {
  require(shape.size() == strides.size(), "a tensor view needs a stride per extent: shape ", shape, ", strides ", strides);
  require_extents(shape);
  require(data != nullptr || polyhead::numel(shape) == 0, "a tensor view of shape ", shape, " needs memory, not a null pointer");
}

template <class Void>
void BasicTensorView<Void>::refuse_axis(int axis, const char* operation) const {
  fail(ErrorCode::invalid_argument, operation, ": there is no axis ", axis, " in a tensor of shape ", shape_);
}

template <class Void>
void BasicTensorView<Void>::require_dtype(DType wanted) const {
  require(dtype_ == wanted, "a tensor of ", dtype_, " was read as ", wanted);
}

template <class Void>
bool BasicTensorView<Void>::is_contiguous() const {
  if (numel() == 0) return true;
  std::int64_t expected = 1;
  for (int axis = rank() - 1; axis >= 0; --axis) {
    if (shape_[axis] != 1 && strides_[axis] != expected) return false;
    expected *= shape_[axis];
  }
  return true;
}

template <class Void>
BasicTensorView<Void> BasicTensorView<Void>::select(int axis, std::int64_t index) const {
  const int at = axis_index(axis, "select");
  require(0 <= index && index < shape_[at], "select: index ", index, " is outside of axis ", axis, " of a tensor of shape ", shape_);
  BasicTensorView result = *this;
  result.data_ = advance(data_, dtype_, index * strides_[at]);
  result.shape_.erase(at);
  result.strides_.erase(at);
  return result;
}

template <class Void>
BasicTensorView<Void> BasicTensorView<Void>::slice(int axis, std::int64_t first, std::int64_t last, std::int64_t step) const {
  const int at = axis_index(axis, "slice");
  require(0 <= first && first <= last && last <= shape_[at], "slice: [", first, ",", last, ") is no range of axis ", axis, " of a tensor of shape ", shape_, "; 0 <= first <= last <= ", shape_[at],
          " is needed, whatever the step");
  require(step != 0, "slice: the step must not be 0");
  BasicTensorView result = *this;
  result.shape_[at] = 0;
  if (first == last) return result;
  // A negative step starts at the last element of the range. |step| is computed as unsigned, because -INT64_MIN does not fit in int64.
  const std::uint64_t size = step < 0 ? 0 - static_cast<std::uint64_t>(step) : static_cast<std::uint64_t>(step);
  result.shape_[at] = static_cast<std::int64_t>(static_cast<std::uint64_t>(last - first - 1) / size) + 1;
  if (result.shape_[at] > 1) result.strides_[at] = strides_[at] * step;
  result.data_ = advance(data_, dtype_, (step > 0 ? first : last - 1) * strides_[at]);
  return result;
}

template <class Void>
BasicTensorView<Void> BasicTensorView<Void>::transpose(int axis_a, int axis_b) const {
  const int a = axis_index(axis_a, "transpose"), b = axis_index(axis_b, "transpose");
  BasicTensorView result = *this;
  std::swap(result.shape_[a], result.shape_[b]);
  std::swap(result.strides_[a], result.strides_[b]);
  return result;
}

template <class Void>
BasicTensorView<Void> BasicTensorView<Void>::permute(std::span<const int> axes) const {
  require(static_cast<int>(axes.size()) == rank(), "permute: ", axes.size(), " axes are given for a tensor of shape ", shape_);
  BasicTensorView result = *this;
  std::array<bool, kMaxRank> seen{};
  for (int i = 0; i < rank(); ++i) {
    const int from = axis_index(axes[static_cast<std::size_t>(i)], "permute");
    require(!seen[static_cast<std::size_t>(from)], "permute: axis ", from, " is given twice");
    seen[static_cast<std::size_t>(from)] = true;
    result.shape_[i] = shape_[from];
    result.strides_[i] = strides_[from];
  }
  return result;
}

template <class Void>
BasicTensorView<Void> BasicTensorView<Void>::move_axis(int from, int to) const {
  const int a = axis_index(from, "move_axis"), b = axis_index(to, "move_axis");
  BasicTensorView result = *this;
  result.shape_.erase(a);
  result.strides_.erase(a);
  result.shape_.insert(b, shape_[a]);
  result.strides_.insert(b, strides_[a]);
  return result;
}

template <class Void>
BasicTensorView<Void> BasicTensorView<Void>::unsqueeze(int axis) const {
  require(-rank() - 1 <= axis && axis <= rank(), "unsqueeze: no axis can be inserted at ", axis, " in a tensor of shape ", shape_);
  BasicTensorView result = *this;
  const int at = axis < 0 ? axis + rank() + 1 : axis;
  result.shape_.insert(at, 1);
  result.strides_.insert(at, 0);
  return result;
}

template <class Void>
BasicTensorView<Void> BasicTensorView<Void>::expand(const Shape& shape) const {
  const int added = shape.size() - rank();
  require(added >= 0, "expand: shape ", shape_, " has more dimensions than ", shape);
  require_extents(shape);
  BasicTensorView result = *this;
  result.shape_ = shape;
  result.strides_ = shape;
  for (int axis = 0; axis < shape.size(); ++axis) {
    const std::int64_t own = axis < added ? 1 : shape_[axis - added];
    require(own == shape[axis] || own == 1, "expand: shape ", shape_, " does not broadcast to ", shape);
    result.strides_[axis] = own == 1 ? 0 : strides_[axis - added];
  }
  return result;
}

template <class Void>
BasicTensorView<Void> BasicTensorView<Void>::unflatten(int axis, const Shape& parts) const {
  const int at = axis_index(axis, "unflatten");
  require_extents(parts);
  require(polyhead::numel(parts) == shape_[at], "unflatten: an extent of ", shape_[at], " does not split into ", parts);
  BasicTensorView result = *this;
  const Strides inner = contiguous_strides(parts);
  const std::int64_t stride = strides_[at];
  result.shape_.erase(at);
  result.strides_.erase(at);
  for (int i = 0; i < parts.size(); ++i) {
    result.shape_.insert(at + i, parts[i]);
    result.strides_.insert(at + i, inner[i] * stride);
  }
  return result;
}

template <class Void>
BasicTensorView<Void> BasicTensorView<Void>::reshape(const Shape& shape) const {
  require_extents(shape);
  require(polyhead::numel(shape) == numel(), "reshape: ", shape_, " has ", numel(), " elements, ", shape, " has ", polyhead::numel(shape));
  BasicTensorView result = *this;
  result.shape_ = shape;
  result.strides_ = contiguous_strides(shape);
  if (numel() == 0) return result;
  // Match old and new axes from the innermost outwards. Old axes that merge into one new axis must be evenly strided.
  int old_axis = rank() - 1, new_axis = shape.size() - 1;
  while (old_axis >= 0 || new_axis >= 0) {
    if (old_axis >= 0 && shape_[old_axis] == 1) { --old_axis; continue; }
    if (new_axis >= 0 && shape[new_axis] == 1) { result.strides_[new_axis--] = 0; continue; }
    std::int64_t stride = strides_[old_axis];
    std::int64_t available = shape_[old_axis--], taken = 1;
    const std::int64_t unit = stride;
    while (true) {
      if (taken == available) break;
      if (taken < available) {
        result.strides_[new_axis] = unit * taken;
        taken *= shape[new_axis--];
        continue;
      }
      while (shape_[old_axis] == 1) --old_axis;
      stride = strides_[old_axis];
      require(stride == unit * available, "reshape: strides ", strides_, " of shape ", shape_, " cannot express ", shape, " without a copy");
      available *= shape_[old_axis--];
    }
  }
  return result;
}

template class BasicTensorView<void>;
template class BasicTensorView<const void>;

}  // namespace polyhead
