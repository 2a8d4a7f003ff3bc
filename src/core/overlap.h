#pragma once

#include <span>
#include <string>
#include <string_view>

#include "core/text.h"
#include "polyhead/tensor_view.h"

#pragma GCC visibility push(default)  // exported: the libraries of other components call these
namespace polyhead::inline internal {

// Whether two views share a byte. Exact: views that interleave (slices of one packed tensor) do not overlap.
bool overlaps(const ConstTensorView& a, const ConstTensorView& b);

// Whether two positions of one view share memory (a zero stride, a sliding window).
bool overlaps_itself(const ConstTensorView& view);

// A view of the same elements in another order, each once. Exception: if axes overlap and neither stride is a multiple of the other, some
// elements may occur several times.
TensorView distinct_elements(TensorView view);

// First and one-past-last byte that the view touches; equal when it has no elements.
struct MemorySpan {
  const char* first;
  const char* last;
};
MemorySpan byte_span(const ConstTensorView& view);

// A name for messages in up to two parts ("gradients.parameters->", "weight"), which are joined only when a message is written.
struct OperandName {
  OperandName() = default;
  OperandName(const char* whole) : second(whole) {}         // NOLINT(google-explicit-constructor)
  OperandName(std::string_view whole) : second(whole) {}    // NOLINT(google-explicit-constructor)
  OperandName(const std::string& whole) : second(whole) {}  // NOLINT(google-explicit-constructor)
  OperandName(std::string_view prefix, std::string_view rest) : first(prefix), second(rest) {}
  operator MessagePart() const { return {first, second}; }  // NOLINT(google-explicit-constructor)
  std::string_view first, second;
};

// A tensor of an operation and its name for messages. An absent tensor overlaps nothing.
struct Operand {
  OperandName name;
  ConstTensorView view;
  bool sums = false;  // for an output: its positions may share memory, because values are summed there
};

// Error if an output overlaps an input, another output or (unless Operand::sums) itself.
void require_no_overlap(std::string_view operation, std::span<const Operand> outputs, std::span<const Operand> inputs);

}  // namespace polyhead::inline internal
#pragma GCC visibility pop
