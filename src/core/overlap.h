#pragma once

#include "polyhead/tensor_view.h"

namespace polyhead {

// Whether two views share a byte. Exact: views that interleave (slices of one packed tensor) do not overlap.
bool overlaps(ConstTensorView a, ConstTensorView b);

// Whether two positions of one view share memory (a zero stride, a sliding window).
bool overlaps_itself(ConstTensorView view);

// First and one-past-last byte that the view touches; equal when it has no elements.
struct ByteSpan {
  const char* first;
  const char* last;
};
ByteSpan byte_span(ConstTensorView view);

}  // namespace polyhead
