#pragma once

#include <vector>

#include "polyhead/tensor_view.h"

namespace polyhead {

// float64 sums for a floating tensor whose positions may share memory (zero or overlapping strides): what is added at positions that share an
// element ends up in that element, rounded once.
class SharedSums {
 public:
  explicit SharedSums(TensorView target);  // zeros
  SharedSums(const SharedSums&) = delete;
  SharedSums& operator=(const SharedSums&) = delete;

  // The shape of the target; positions share a sum where they share an element.
  const TensorView& view() const { return view_; }
  void store() const;  // into the target

 private:
  TensorView target_, view_;
  std::vector<double> sums_;
};

}  // namespace polyhead
