#pragma once

#include <vector>

#include "core/index.h"
#include "polyhead/tensor_view.h"

namespace polyhead {

// Offsets of the rows (or of the columns) of a matrix that is a view of a tensor. The rows may combine several tensor axes: the rows of x [*,width] are all
// axes but the last. If no single stride describes all rows, a table holds their offsets (8 bytes each).
class Axis {
 public:
  Axis(const Shape& shape, const Strides& strides) : count_(numel(shape)) {
    if (count_ == 0) return;
    std::int64_t reach = 1;  // the indices 0 .. reach - 1 are evenly spaced, stride_ elements apart
    for (int axis = shape.size() - 1; axis >= 0; --axis) {
      if (shape[axis] == 1) continue;
      if (reach == 1) stride_ = strides[axis];
      if (strides[axis] != stride_ * reach) break;
      reach *= shape[axis];
    }
    run_ = reach;
    if (reach == count_) return;
    offsets_.reserve(static_cast<std::size_t>(count_));
    for_each_offset<1>(shape, {strides}, [&](const auto& at) { offsets_.push_back(at[0]); });
  }

  std::int64_t count() const { return count_; }
  // Returns the offset of `index` from index 0, in elements.
  std::int64_t operator[](std::int64_t index) const {
    return offsets_.empty() ? index * stride_ : offsets_[static_cast<std::size_t>(index)];
  }
  // Within each group of run() indices that begins at a multiple of run(), neighbours are stride() elements apart.
  std::int64_t run() const { return run_; }
  std::int64_t stride() const { return stride_; }
  const std::int64_t* table() const { return offsets_.empty() ? nullptr : offsets_.data(); }  // nullptr if all neighbouring indices are stride() apart

 private:
  std::int64_t count_;
  std::int64_t stride_ = 0, run_ = 1;
  std::vector<std::int64_t> offsets_;
};

}  // namespace polyhead
