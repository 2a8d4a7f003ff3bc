#include "cpu/sdpa/bias_gradient.h"

#include "core/dispatch.h"
#include "core/index.h"
#include "core/overlap.h"
#include "cpu/sdpa/group.h"

namespace polyhead::cpu {

BiasGradient::BiasGradient(const BackwardProblem& problem) : problem_(problem) {
  const TensorView& given = problem.d_bias_given;
  const DType arithmetic = accumulation_dtype(problem.dtype);
  if (given.dtype() == arithmetic) {
    fill(given, 0);
    sums_ = problem.d_bias;
  } else {
    const ByteSpan span = byte_span(given);
    const auto size = static_cast<std::ptrdiff_t>(info(given.dtype()).size);
    memory_ = Tensor(arithmetic, {(span.last - span.first) / size});
    fill(memory_, 0);
    origin_ = (static_cast<const char*>(given.data()) - span.first) / size;
    sums_ = TensorView(memory_.data<float>() + origin_, arithmetic, problem.d_bias.shape(), problem.d_bias.strides());
  }

  // Along an axis with a stride elements are apart, unless the view slides over its memory; then only a stride beyond all that the inner
  // axes reach is known to keep them apart.
  const bool slides = overlaps_itself(given);
  const Shape& shape = sums_.shape();
  std::int64_t reach = 1;
  const auto shared = [&](int axis) {
    const std::int64_t stride = sums_.stride(axis) < 0 ? -sums_.stride(axis) : sums_.stride(axis);
    const bool together = shape[axis] > 1 && (stride == 0 || (slides && stride < reach));
    reach += shape[axis] > 0 ? (shape[axis] - 1) * stride : 0;
    return together;
  };
  by_keys_ = shared(-1) || slides;
  shared(-2);  // rows of one head are always added in order
  by_heads_ = shared(-3);
  for (int axis = -4; axis >= -shape.size(); --axis) by_sequences_ |= shared(axis);
}

MutablePlane BiasGradient::plane(std::int64_t b, std::int64_t first_head) const { return plane_of(sums_, b, first_head); }

void BiasGradient::store() const {
  if (!memory_) return;
  const TensorView& given = problem_.d_bias_given;
  const float* sums = memory_.data<float>() + origin_;
  dispatch_floating(given.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    T* target = given.data<T>();
    for_each_offset<1>(given.shape(), {given.strides()}, [&](const auto& at) { target[at[0]] = polyhead::store<T>(sums[at[0]]); });
  });
}

}  // namespace polyhead::cpu
