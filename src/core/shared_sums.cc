#include "core/shared_sums.h"

#include "core/dispatch.h"
#include "core/index.h"
#include "core/overlap.h"

namespace polyhead {

SharedSums::SharedSums(TensorView target, DType arithmetic) : target_(target) {
  if (target.dtype() == arithmetic) {
    view_ = target;
    fill(distinct_elements(view_), 0);
  } else if (!overlaps_itself(target)) {  // sum in a dense copy: the address range of a slice may be far larger than its elements
    memory_ = Tensor(arithmetic, target.shape());
    view_ = memory_.view();
  } else {
    const MemorySpan span = byte_span(target);
    const auto size = static_cast<std::ptrdiff_t>(info(target.dtype()).size);
    memory_ = Tensor(arithmetic, Shape{(span.last - span.first) / size});
    const std::ptrdiff_t origin = (static_cast<const char*>(target.data()) - span.first) / size;
    dispatch_floating(arithmetic, [&](auto type) {
      view_ = TensorView(memory_.data<typename decltype(type)::type>() + origin, arithmetic, target.shape(), target.strides());
    });
  }
}

void SharedSums::store() const {
  if (!memory_) return;
  const bool alike = view_.strides() == target_.strides();  // then write each shared element only once
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
