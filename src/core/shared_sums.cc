#include "core/quiet_arithmetic.h"
#include "core/shared_sums.h"

#include "core/dispatch.h"
#include "core/index.h"
#include "core/overlap.h"
#include "core/parallel.h"

namespace polyhead {

SharedSums::SharedSums(TensorView target, DType arithmetic) : target_(target) {
  if (target.dtype() == arithmetic) {
    view_ = target;
    fill(distinct_elements(view_), 0);
  } else {
    allocate(arithmetic);
  }
}

SharedSums::SharedSums(TensorView target, Memory) : target_(target) { allocate(target.dtype()); }

void SharedSums::allocate(DType arithmetic) {
  // No elements are shared, so sum in a dense tensor. A copy of the target's address range could be much larger, because the target may be a slice.
  if (!overlaps_itself(target_)) {
    memory_ = Tensor(arithmetic, target_.shape());
    view_ = memory_.view();
  } else {
    const MemorySpan span = byte_span(target_);
    const auto size = static_cast<std::ptrdiff_t>(info(target_.dtype()).size);
    memory_ = Tensor(arithmetic, Shape{(span.last - span.first) / size});
    const std::ptrdiff_t origin = (static_cast<const char*>(target_.data()) - span.first) / size;
    dispatch_floating(arithmetic, [&](auto type) {
      view_ = TensorView(memory_.data<typename decltype(type)::type>() + origin, arithmetic, target_.shape(), target_.strides());
    });
  }
}

void SharedSums::add_to(const SharedSums& whole, Executor* executor) const {
  const bool alike = view_.strides() == whole.view_.strides();
  const TensorView from = alike ? distinct_elements(view_) : view_, to = alike ? distinct_elements(whole.view_) : whole.view_;
  dispatch_floating(from.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (std::is_floating_point_v<T>) {
      const T* sums = from.data<T>();
      T* target = to.data<T>();
      if (!from.is_contiguous() || !to.is_contiguous()) {
        return for_each_offset<2>(to.shape(), {to.strides(), from.strides()}, [&](const auto& at) { target[at[0]] += sums[at[1]]; });
      }
      parallel_for(to.numel(), static_cast<std::int64_t>(10 * kLeastPieceNanoseconds), executor, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; ++i) target[i] += sums[i];
      });
    }
  });
}

void SharedSums::store() const {
  if (!memory_) return;
  const QuietArithmetic quiet;  // a sum may overflow a 16-bit type, which must not raise a floating-point trap
  // true: sums and target have the same order of elements, so each shared element can be written once
  const bool alike = view_.strides() == target_.strides();
  const TensorView from = alike ? distinct_elements(view_) : view_, to = alike ? distinct_elements(target_) : target_;
  dispatch_floating(from.dtype(), [&](auto from_type) {
    dispatch_floating(to.dtype(), [&](auto to_type) {
      using To = typename decltype(to_type)::type;
      const auto* sums = from.data<typename decltype(from_type)::type>();
      To* target = to.data<To>();
      for_each_offset<2>(to.shape(), {to.strides(), from.strides()},
                         [&](const auto& at) { target[at[0]] = polyhead::store<To>(load(sums[at[1]])); });
    });
  });
}

}  // namespace polyhead
