// What every module requires of the tensors that it is given.
#pragma once

#include <initializer_list>
#include <string_view>

#include "core/overlap.h"
#include "core/text.h"

namespace polyhead::nn {

struct NamedView {
  std::string_view name;
  ConstTensorView view;
};

inline void require_tensor(std::string_view operation, const NamedView& tensor, DType dtype) {
  require(static_cast<bool>(tensor.view), operation, ": ", tensor.name, " is missing");
  require(tensor.view.dtype() == dtype, operation, ": ", tensor.name, " is ", tensor.view.dtype(), "; it must be ", dtype,
          ", as the other tensors");
}

// The leading extents are free, the last is the module's.
inline void require_width(std::string_view operation, const NamedView& tensor, std::string_view what, std::int64_t width) {
  require(tensor.view.rank() >= 1 && tensor.view.extent(-1) == width, operation, ": ", tensor.name, " is ", tensor.view.shape(),
          "; its last extent must be ", what, " = ", width);
}

inline void require_shape(std::string_view operation, const NamedView& tensor, const Shape& shape) {
  require(tensor.view.shape() == shape, operation, ": ", tensor.name, " is ", tensor.view.shape(), "; it must be ", shape);
}

// What is written may share memory neither with what is read nor with itself.
inline void require_separate(std::string_view operation, const NamedView& output, std::initializer_list<NamedView> inputs) {
  require(!overlaps_itself(output.view), operation, ": elements of ", output.name, " share memory: shape ", output.view.shape(),
          ", strides ", output.view.strides());
  for (const NamedView& input : inputs) {
    require(!overlaps(output.view, input.view), operation, ": ", output.name, " overlaps ", input.name, " in memory");
  }
}

inline Shape with_width(Shape shape, std::int64_t width) {
  shape[-1] = width;
  return shape;
}

// A module's parameter: floating, of exactly this shape.
inline void require_parameter(std::string_view operation, const NamedView& tensor, const Shape& shape, DType dtype) {
  require_tensor(operation, tensor, dtype);
  require_shape(operation, tensor, shape);
}

}  // namespace polyhead::nn
