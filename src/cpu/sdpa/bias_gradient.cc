#include "cpu/sdpa/bias_gradient.h"

#include "core/overlap.h"
#include "cpu/sdpa/group.h"

namespace polyhead::cpu {

BiasGradient::BiasGradient(const BackwardProblem& problem) : pairs_(problem.d_bias) {
  const bool self_overlapping = overlaps_itself(problem.d_bias_given);
  if (!self_overlapping && problem.d_bias.numel() == problem.d_bias_given.numel()) return;  // also if both are empty
  sums_.emplace(problem.d_bias_given, accumulation_dtype(problem.dtype));
  pairs_ = sums_->view().expand(problem.d_bias.shape());
  // Indices of an axis share elements if its stride is 0; in a view that overlaps itself they may also share them if the stride is smaller
  // than `reach`, the span of the inner axes.
  const Shape& shape = pairs_.shape();
  std::int64_t reach = 1;
  const auto shared = [&](int axis) {
    const std::int64_t stride = pairs_.stride(axis) < 0 ? -pairs_.stride(axis) : pairs_.stride(axis);
    const bool together = shape[axis] > 1 && (stride == 0 || (self_overlapping && stride < reach));
    reach += shape[axis] > 0 ? (shape[axis] - 1) * stride : 0;
    return together;
  };
  by_keys_ = shared(-1) || self_overlapping;
  shared(-2);  // only extends `reach`: one task adds all rows of a head
  by_heads_ = shared(-3);
  for (int axis = -4; axis >= -shape.size(); --axis) by_sequences_ |= shared(axis);
  by_heads_ |= self_overlapping && by_sequences_;  // overlapping sequences may also overlap another head
}

MutablePlane BiasGradient::plane(std::int64_t b, std::int64_t first_head, const Document& document) const {
  MutablePlane plane = plane_of(pairs_, b, first_head);
  const std::int64_t offset = document.queries.first * plane.row + document.keys.first * plane.column;
  plane.data = static_cast<char*>(plane.data) + offset * static_cast<std::int64_t>(info(pairs_.dtype()).size);
  return plane;
}

}  // namespace polyhead::cpu
