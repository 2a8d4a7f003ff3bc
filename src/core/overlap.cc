#include "core/overlap.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "core/index.h"
#include "core/text.h"

namespace polyhead::inline internal {
namespace {

constexpr std::less<const char*> before;  // unlike the operator <, std::less orders pointers into different allocations

bool meet(const MemorySpan& x, const MemorySpan& y) {
  return x.first != x.last && y.first != y.last && before(x.first, y.last) && before(y.first, x.last);
}

// A simpler view of the same bytes: no axes of extent 1, positive strides, largest stride first.
struct Layout {
  Shape shape;
  Strides strides;
};

Layout normalised(ConstTensorView view) {
  std::vector<std::pair<std::int64_t, std::int64_t>> axes;
  for (int axis = 0; axis < view.rank(); ++axis) {
    if (view.extent(axis) != 1) axes.emplace_back(std::abs(view.stride(axis)), view.extent(axis));
  }
  std::sort(axes.rbegin(), axes.rend());
  Layout layout;
  for (const auto& [stride, extent] : axes) {
    layout.strides.push_back(stride);
    layout.shape.push_back(extent);
  }
  return layout;
}

// True if each stride is at least the range that the axes with smaller strides cover; then no two positions share memory.
bool nested(const Layout& layout) {
  std::int64_t covered = 1;
  for (int axis = layout.shape.size() - 1; axis >= 0; --axis) {
    if (layout.strides[axis] < covered) return false;
    covered += (layout.shape[axis] - 1) * layout.strides[axis];
  }
  return true;
}

// Returns the size in bytes of the view's address range modulo `modulus`. Axes whose strides are multiples of `modulus` do not extend this range.
std::int64_t reach_modulo(ConstTensorView view, std::int64_t modulus) {
  const auto element = static_cast<std::int64_t>(info(view.dtype()).size);
  std::int64_t reach = element;
  for (int axis = 0; axis < view.rank(); ++axis) {
    const std::int64_t stride = std::abs(view.stride(axis)) * element;
    if (stride % modulus != 0) reach += (view.extent(axis) - 1) * stride;
  }
  return reach;
}

// True if the views interleave as different columns of one matrix do. Their addresses modulo the row size are then separate ranges, so the views do not
// overlap. Each stride is tried as the row size.
bool interleave(ConstTensorView a, ConstTensorView b) {
  const std::int64_t distance = byte_span(b).first - byte_span(a).first;
  for (const ConstTensorView& view : {a, b}) {
    for (int axis = 0; axis < view.rank(); ++axis) {
      const std::int64_t modulus = std::abs(view.stride(axis)) * static_cast<std::int64_t>(info(view.dtype()).size);
      if (view.extent(axis) == 1 || modulus == 0) continue;
      const std::int64_t start = (distance % modulus + modulus) % modulus;  // address of b minus the address of a, modulo `modulus`
      if (start >= reach_modulo(a, modulus) && start + reach_modulo(b, modulus) <= modulus) return true;
    }
  }
  return false;
}

// A set of bytes in the memory range [first, last): one flag per byte.
class Footprint {
 public:
  Footprint(const char* first, const char* last) : first_(first), bytes_(static_cast<std::size_t>(last - first)) {}

  // Marks the view's bytes that lie in the range. Returns true if one of these bytes was already marked.
  bool mark(ConstTensorView view) {
    bool met = false;
    visit(view, [&](std::size_t byte) {
      met |= bytes_[byte];
      bytes_[byte] = true;
    });
    return met;
  }

  bool meets(ConstTensorView view) const {
    bool met = false;
    visit(view, [&](std::size_t byte) { met |= bytes_[byte]; });
    return met;
  }

 private:
  template <class F>
  void visit(ConstTensorView view, const F& f) const {
    const auto size = static_cast<std::int64_t>(info(view.dtype()).size);
    const std::int64_t start = static_cast<const char*>(view.data()) - first_;
    for_each_offset<1>(view.shape(), {view.strides()}, [&](const auto& at) {
      for (std::int64_t byte = start + at[0] * size, end = byte + size; byte < end; ++byte) {
        if (0 <= byte && byte < static_cast<std::int64_t>(bytes_.size())) f(static_cast<std::size_t>(byte));
      }
    });
  }

  const char* first_;
  std::vector<bool> bytes_;
};

}  // namespace

MemorySpan byte_span(const ConstTensorView& view) {
  const auto* data = static_cast<const char*>(view.data());
  const Shape& shape = view.shape();
  if (!view || numel(shape) == 0) return {data, data};
  std::int64_t low = 0, high = 0;
  for (int axis = 0; axis < shape.size(); ++axis) {
    const std::int64_t reach = (shape[axis] - 1) * view.strides()[axis];
    (reach < 0 ? low : high) += reach;
  }
  const auto size = static_cast<std::int64_t>(info(view.dtype()).size);
  return {data + low * size, data + (high + 1) * size};
}

bool overlaps(const ConstTensorView& a, const ConstTensorView& b) {
  const MemorySpan x = byte_span(a), y = byte_span(b);
  if (!meet(x, y) || interleave(a, b)) return false;
  Footprint footprint(std::max(x.first, y.first, before), std::min(x.last, y.last, before));
  footprint.mark(a);
  return footprint.meets(b);
}

bool overlaps_itself(const ConstTensorView& view) {
  if (!view || view.numel() == 0 || view.is_contiguous() || nested(normalised(view))) return false;
  const MemorySpan span = byte_span(view);
  // The view has more positions than its memory has elements, so two positions share an element. An example is a table with one entry per distance t - s,
  // viewed as [T,S].
  if (view.numel() > (span.last - span.first) / static_cast<std::ptrdiff_t>(info(view.dtype()).size)) return true;
  return Footprint(span.first, span.last).mark(view);
}

TensorView distinct_elements(TensorView view) {
  if (!view || view.numel() == 0) return view;
  const Layout layout = normalised(view);
  Shape shape;  // axes of the result, the innermost axis first
  Strides strides;
  for (int axis = layout.shape.size() - 1; axis >= 0; --axis) {
    const std::int64_t stride = layout.strides[axis], extent = layout.shape[axis];
    if (stride == 0) continue;
    std::int64_t* const inner = shape.size() > 0 ? &shape[shape.size() - 1] : nullptr;
    const std::int64_t step = inner != nullptr ? strides[strides.size() - 1] : 1;
    if (inner != nullptr && stride % step == 0 && stride / step <= *inner) {  // the two axes together are evenly spaced, so they become one axis
      *inner += (extent - 1) * (stride / step);
    } else {
      shape.push_back(extent);
      strides.push_back(stride);
    }
  }
  std::reverse(shape.begin(), shape.end()), std::reverse(strides.begin(), strides.end());
  return TensorView(const_cast<char*>(byte_span(view).first), view.dtype(), shape, strides);
}

void require_no_overlap(std::string_view operation, std::span<const Operand> outputs, std::span<const Operand> inputs) {
  std::vector<MemorySpan> spans;  // address ranges of all inputs, and of the outputs checked so far
  spans.reserve(inputs.size() + outputs.size());
  for (const Operand& in : inputs) spans.push_back(byte_span(in.view));
  for (const Operand& out : outputs) {
    const MemorySpan own = byte_span(out.view);
    for (std::size_t i = 0; i < spans.size(); ++i) {
      if (!meet(spans[i], own)) continue;
      const Operand& other = i < inputs.size() ? inputs[i] : outputs[i - inputs.size()];
      require(!overlaps(other.view, out.view), operation, ": ", out.name, " overlaps ", other.name, "; outputs need memory of their own");
    }
    spans.push_back(own);
    require(out.sums || !overlaps_itself(out.view), operation, ": elements of ", out.name, " share memory: shape ", out.view.shape(),
            ", strides ", out.view.strides());
  }
}

}  // namespace polyhead::inline internal
