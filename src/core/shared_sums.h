#pragma once

#include "polyhead/executor.h"
#include "polyhead/tensor.h"

namespace polyhead {

// Accumulates into a floating tensor whose positions may share memory (zero or overlapping strides). Positions that share an element share
// one sum of dtype `arithmetic`, which store() rounds once. If the target has that dtype, its own memory holds the sums.
class SharedSums {
 public:
  explicit SharedSums(TensorView target, DType arithmetic = DType::f64);  // all sums begin at 0
  // Returns new sums of the same shape, all 0 and in separate memory. add_to() adds them to the sums of `whole`.
  static SharedSums part_of(const SharedSums& whole) { return SharedSums(whole.view_, Memory::own); }
  SharedSums(SharedSums&&) = default;
  SharedSums(const SharedSums&) = delete;
  SharedSums& operator=(const SharedSums&) = delete;

  // Returns the sums, in the shape of the target.
  const TensorView& view() const { return view_; }
  void store() const;  // writes the sums to the target, rounded once
  void add_to(const SharedSums& whole, Executor* executor) const;

 private:
  enum class Memory { own };
  SharedSums(TensorView target, Memory);
  void allocate(DType arithmetic);

  TensorView target_, view_;
  Tensor memory_;  // memory of the sums; absent if the target holds them
};

}  // namespace polyhead
