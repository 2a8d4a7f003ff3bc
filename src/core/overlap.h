#pragma once

#include <span>
#include <string>
#include <string_view>

#include "polyhead/tensor_view.h"

namespace polyhead {

// Whether two views share a byte. Exact: views that interleave (slices of one packed tensor) do not overlap.
bool overlaps(const ConstTensorView& a, const ConstTensorView& b);

// Whether two positions of one view share memory (a zero stride, a sliding window).
bool overlaps_itself(const ConstTensorView& view);

// A view of the same elements in another order, each element once if the strides of axes that share elements are multiples of each other, as in
// sliding and broadcast views.
TensorView distinct_elements(TensorView view);

// First and one-past-last byte that the view touches; equal when it has no elements.
struct MemorySpan {
  const char* first;
  const char* last;
};
MemorySpan byte_span(const ConstTensorView& view);

// A name in messages, of up to two parts ("grads->", "weight"): put together in messages only.
struct OperandName {
  OperandName() = default;
  OperandName(const char* whole) : second(whole) {}         // NOLINT(google-explicit-constructor)
  OperandName(std::string_view whole) : second(whole) {}    // NOLINT(google-explicit-constructor)
  OperandName(const std::string& whole) : second(whole) {}  // NOLINT(google-explicit-constructor)
  OperandName(std::string_view prefix, std::string_view rest) : first(prefix), second(rest) {}
  friend void append(std::string& text, const OperandName& name) { (text += name.first) += name.second; }
  std::string_view first, second;
};

// A tensor of an operation and its name in messages; an absent one shares nothing.
struct Operand {
  OperandName name;
  ConstTensorView view;
  bool sums = false;  // of an output: positions that share memory are summed there, which is legal
};

// What is written may share memory with nothing that is read, with no other output, and not with itself. Error otherwise.
void require_separate(std::string_view operation, std::span<const Operand> outputs, std::span<const Operand> inputs);

}  // namespace polyhead
