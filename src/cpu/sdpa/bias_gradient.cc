#include "cpu/sdpa/bias_gradient.h"

#include "core/overlap.h"
#include "cpu/sdpa/group.h"
#include "cpu/sdpa/schedule.h"

namespace polyhead::cpu {

BiasGradient::BiasGradient(const BackwardProblem& problem) : problem_(problem), pairs_(problem.d_bias), group_size_(problem.batch) {
  if (problem.d_relative_bias) {
    sums_.emplace(problem.d_relative_bias, accumulation_dtype(problem.dtype));
    pairs_ = sums_->view();
    by_keys_ = by_rows_ = true, by_sequences_ = problem.batch > 1;
    cut_sequences();
    return;
  }
  const bool self_overlapping = overlaps_itself(problem.d_bias_given);
  // If each pair (query, key) has a separate element of d_bias, nothing is summed.
  if (!self_overlapping && problem.d_bias.numel() == problem.d_bias_given.numel()) return;
  sums_.emplace(problem.d_bias_given, accumulation_dtype(problem.dtype));
  pairs_ = sums_->view().expand(problem.d_bias.shape());
  // Two indices of an axis share elements if the axis has stride 0. In a view that overlaps itself, they may also share elements if the axis' stride is smaller
  // than `reach`, the number of elements that the inner axes span.
  const Shape& shape = pairs_.shape();
  std::int64_t reach = 1;
  const auto shared = [&](int axis) {
    const std::int64_t stride = pairs_.stride(axis) < 0 ? -pairs_.stride(axis) : pairs_.stride(axis);
    const bool together = shape[axis] > 1 && (stride == 0 || (self_overlapping && stride < reach));
    reach += shape[axis] > 0 ? (shape[axis] - 1) * stride : 0;
    return together;
  };
  by_keys_ = shared(-1) || self_overlapping;
  by_rows_ = shared(-2) || self_overlapping;
  by_heads_ = shared(-3);
  for (int axis = -4; axis >= -shape.size(); --axis) by_sequences_ |= shared(axis);
  // If sequences overlap in memory, a head of one sequence may overlap another head of another sequence.
  by_heads_ |= self_overlapping && by_sequences_;
  by_rows_ |= by_heads_ && problem.heads != problem.kv_heads;  // with grouped heads, the rows of a key/value head belong to several query heads
  // Sequences are divided into groups only if distinct_elements() visits each element once. Otherwise the sums of the groups cannot be added.
  if (!overlaps_itself(distinct_elements(sums_->view()))) cut_sequences();
}

void BiasGradient::cut_sequences() {
  // Packed documents are not grouped: adding the sums of groups would visit pairs of different documents too, for which nothing is computed.
  if (!by_sequences_ || problem_.packed()) return;
  group_size_ = sequences_per_group(problem_.batch);
  groups_ = (problem_.batch + group_size_ - 1) / group_size_;
}

void BiasGradient::allocate_groups(std::int64_t count) {
  parts_.clear();
  while (static_cast<std::int64_t>(parts_.size()) < count) parts_.push_back(SharedSums::part_of(*sums_));
}

void BiasGradient::add_groups(Executor* executor) {
  for (const SharedSums& part : parts_) part.add_to(*sums_, executor);
  parts_.clear();
}

MutableHeadView BiasGradient::view(std::int64_t b, std::int64_t first_head, const Document& document, std::int64_t group) const {
  // The sums of a group have the shape of the sums of all sequences, but their strides may differ.
  const TensorView own = parts_.empty() ? pairs_ : parts_[static_cast<std::size_t>(group)].view().expand(pairs_.shape());
  if (problem_.d_relative_bias) return relative_bias_view(problem_, own, b, first_head, document);
  return head_view(of_pairs(own, document), b, first_head);
}

}  // namespace polyhead::cpu
