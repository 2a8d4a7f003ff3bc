// Temporaries as arguments: a Tensor gives no view of a temporary, as the view could outlive it.
#pragma once

#include <type_traits>

#include "polyhead/tensor.h"

namespace polyhead {

// Passes a temporary to a call that keeps no view of its argument.
inline Tensor& during_call(Tensor&& temporary) { return temporary; }

namespace test {

// The type of a parameter that takes a view, or anything that converts to one, temporaries included.
struct AnyTensor : ConstTensorView {
  template <class T>
    requires(std::is_convertible_v<const T&, ConstTensorView>)
  AnyTensor(const T& tensor) : ConstTensorView(static_cast<ConstTensorView>(tensor)) {}  // NOLINT(google-explicit-constructor)
};

}  // namespace test
}  // namespace polyhead
