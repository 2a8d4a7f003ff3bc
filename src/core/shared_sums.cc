#include "core/shared_sums.h"

#include "core/dispatch.h"
#include "core/index.h"
#include "core/overlap.h"

namespace polyhead {

SharedSums::SharedSums(TensorView target) : target_(target) {
  if (!overlaps_itself(target)) {  // dense: what a slice spans may be far more than its elements
    sums_.resize(static_cast<std::size_t>(target.numel()));
    view_ = TensorView(sums_.data(), DType::f64, target.shape());
    return;
  }
  const MemorySpan span = byte_span(target);
  const auto size = static_cast<std::ptrdiff_t>(info(target.dtype()).size);
  sums_.resize(static_cast<std::size_t>((span.last - span.first) / size));
  const std::ptrdiff_t origin = (static_cast<const char*>(target.data()) - span.first) / size;
  view_ = TensorView(sums_.data() + origin, DType::f64, target.shape(), target.strides());
}

void SharedSums::store() const {
  dispatch_floating(target_.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    T* target = target_.data<T>();
    const double* sums = view_.data<double>();
    for_each_offset<2>(target_.shape(), {target_.strides(), view_.strides()},
                       [&](const auto& at) { target[at[0]] = polyhead::store<T>(sums[at[1]]); });
  });
}

}  // namespace polyhead
