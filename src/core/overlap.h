#pragma once

#include <span>
#include <string>
#include <string_view>

#include "core/text.h"
#include "polyhead/tensor_view.h"

#pragma GCC visibility push(default)  // exported: the libraries of other components call these
namespace polyhead::inline internal {

// Returns whether two views share a byte. The answer is exact: views whose address ranges overlap but whose bytes interleave (slices of one packed tensor)
// do not overlap.
bool overlaps(const ConstTensorView& a, const ConstTensorView& b);

// Returns whether two positions of one view share memory, as with a zero stride or in a view of sliding windows.
bool overlaps_itself(const ConstTensorView& view);

// Returns a view in which each element of the memory of `view` occurs once, in any order. Exception: if axes overlap and neither stride is a multiple of the
// other, some elements may still occur several times.
TensorView distinct_elements(TensorView view);

// The address range of a view: its first byte and the byte after its last one. first == last if the view has no elements.
struct MemorySpan {
  const char* first;
  const char* last;
};
MemorySpan byte_span(const ConstTensorView& view);

// The name of a tensor for messages, in up to two pieces ("gradients.parameters->", "weight"). They are joined only when a message is written.
struct OperandName {
  OperandName() = default;
  OperandName(const char* whole) : second(whole) {}         // NOLINT(google-explicit-constructor)
  OperandName(std::string_view whole) : second(whole) {}    // NOLINT(google-explicit-constructor)
  OperandName(const std::string& whole) : second(whole) {}  // NOLINT(google-explicit-constructor)
  OperandName(std::string_view prefix, std::string_view rest) : first(prefix), second(rest) {}
  operator MessagePart() const { return {first, second}; }  // NOLINT(google-explicit-constructor)
  std::string_view first, second;
};

// A tensor of an operation and the tensor's name for messages. An absent tensor overlaps nothing.
struct Operand {
  OperandName name;
  ConstTensorView view;
  bool sums = false;  // true for an output whose positions may share memory, because the operation sums their values
};

// Error if an output overlaps an input or another output, or if two positions of an output share memory and Operand::sums is false.
void require_no_overlap(std::string_view operation, std::span<const Operand> outputs, std::span<const Operand> inputs);

}  // namespace polyhead::inline internal
#pragma GCC visibility pop
