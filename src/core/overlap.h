#pragma once

#include <span>
#include <string_view>

#include "polyhead/tensor_view.h"

namespace polyhead {

// Whether two views share a byte. Exact: views that interleave (slices of one packed tensor) do not overlap.
bool overlaps(const ConstTensorView& a, const ConstTensorView& b);

// Whether two positions of one view share memory (a zero stride, a sliding window).
bool overlaps_itself(const ConstTensorView& view);

// A view of the same elements in an order of its own: each once where the axes that share elements step over whole multiples of each other, as
// those of a sliding or broadcast view do.
TensorView distinct_elements(TensorView view);

// First and one-past-last byte that the view touches; equal when it has no elements.
struct MemorySpan {
  const char* first;
  const char* last;
};
MemorySpan byte_span(const ConstTensorView& view);

// A tensor of an operation and its name in messages; an absent one shares nothing.
struct Operand {
  std::string_view name;
  ConstTensorView view;
  bool sums = false;  // of an output: positions that share memory are summed there, which is legal
};

// What is written may share memory with nothing that is read, with no other output, and not with itself. Error otherwise.
void require_separate(std::string_view operation, std::span<const Operand> outputs, std::span<const Operand> inputs);

}  // namespace polyhead
