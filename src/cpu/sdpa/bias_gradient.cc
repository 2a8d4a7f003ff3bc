#include "cpu/sdpa/bias_gradient.h"

#include "core/overlap.h"
#include "cpu/sdpa/group.h"

namespace polyhead::cpu {

BiasGradient::BiasGradient(const BackwardProblem& problem) : pairs_(problem.d_bias) {
  const bool slides = overlaps_itself(problem.d_bias_given);
  if (!slides && problem.d_bias.numel() == problem.d_bias_given.numel()) return;  // also where neither has an element
  sums_.emplace(problem.d_bias_given, accumulation_dtype(problem.dtype));
  pairs_ = sums_->view().expand(problem.d_bias.shape());
  // Along an axis with a stride elements are apart, unless the view slides over its memory; then only a stride beyond all that the inner
  // axes reach is known to keep them apart.
  const Shape& shape = pairs_.shape();
  std::int64_t reach = 1;
  const auto shared = [&](int axis) {
    const std::int64_t stride = pairs_.stride(axis) < 0 ? -pairs_.stride(axis) : pairs_.stride(axis);
    const bool together = shape[axis] > 1 && (stride == 0 || (slides && stride < reach));
    reach += shape[axis] > 0 ? (shape[axis] - 1) * stride : 0;
    return together;
  };
  by_keys_ = shared(-1) || slides;
  shared(-2);  // rows of one head are always added in order
  by_heads_ = shared(-3);
  for (int axis = -4; axis >= -shape.size(); --axis) by_sequences_ |= shared(axis);
  by_heads_ |= slides && by_sequences_;  // sequences that slide may slide into another head
}

MutablePlane BiasGradient::plane(std::int64_t b, std::int64_t first_head) const { return plane_of(pairs_, b, first_head); }

}  // namespace polyhead::cpu
