#pragma once

#include "polyhead/tensor.h"

namespace polyhead {

// Sums for a floating tensor whose positions may share memory (zero or overlapping strides): what is added at positions that share an element
// ends up in that element, rounded once. Where the target has the type of the sums they are made in its own memory.
class SharedSums {
 public:
  explicit SharedSums(TensorView target, DType arithmetic = DType::f64);  // zeros
  SharedSums(const SharedSums&) = delete;
  SharedSums& operator=(const SharedSums&) = delete;

  // The shape of the target; positions share a sum where they share an element.
  const TensorView& view() const { return view_; }
  void store() const;  // into the target

 private:
  TensorView target_, view_;
  Tensor memory_;  // of the sums, absent where they are the target's
};

}  // namespace polyhead
