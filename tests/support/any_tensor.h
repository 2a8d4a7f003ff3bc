// Lets tests pass temporary tensors as arguments. A temporary Tensor does not convert to a view, because the view could outlive the tensor.
#pragma once

#include <type_traits>

#include "polyhead/tensor.h"

namespace polyhead {

// Returns the temporary as an lvalue. Use it only to pass the temporary to a call that does not store a view of its argument.
inline Tensor& during_call(Tensor&& temporary) { return temporary; }

namespace test {

// The type of a parameter that accepts a view or anything that converts to a view, also a temporary tensor.
struct AnyTensor : ConstTensorView {
  template <class T>
    requires(std::is_convertible_v<const T&, ConstTensorView>)
  AnyTensor(const T& tensor) : ConstTensorView(static_cast<ConstTensorView>(tensor)) {}  // NOLINT(google-explicit-constructor)
};

}  // namespace test
}  // namespace polyhead
