// Helpers, other than layers, that several models from transformers' folders share.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "nn/check.h"
#include "nn/elementwise.h"
#include "polyhead/nn/embedding.h"
#include "polyhead/nn/linear.h"

namespace polyhead::models {

inline Shape with_leading(Shape shape, std::int64_t extent) {
  shape.insert(0, extent);
  return shape;
}

// Multiplies x by `factor`, after rounding it to the dtype of x.
inline void scale(TensorView x, double factor, Executor* executor) {
  Tensor number(x.dtype(), {1});
  fill(number, factor);
  nn::multiply(x, number, x, executor);
}

// Returns a tensor on the same memory. Nothing writes to it, because the model is const.
inline Tensor shared(const Tensor& tensor) {
  if (!tensor) return {};
  const ConstTensorView view = tensor.view();
  return Tensor::share({const_cast<void*>(view.data()), view.dtype(), view.shape(), view.strides()}, tensor.owner());
}

inline std::vector<std::int64_t> integers(ConstTensorView view) {
  const Tensor numbers = Tensor::copy_of(view, DType::i64);
  return {numbers.data<std::int64_t>(), numbers.data<std::int64_t>() + numbers.numel()};
}

// Adds learned positions to x [*,T,E], the embedded ids [*,T]. Position 0 is row `offset` of the table. `first`: for each sequence the number of tokens before
// this call; empty: 0. Rows of x after a sequence's new tokens may lie beyond the table; they get its last position.
inline void add_positions(const nn::Embedding& table, const Shape& ids, std::span<const std::int64_t> first, std::int64_t offset, TensorView x, Executor* executor) {
  const std::int64_t tokens = ids[-1], last = table.count() - 1;
  Tensor places(DType::i64, first.empty() ? Shape{tokens} : ids);
  for (std::int64_t i = 0; i < places.numel(); ++i) {
    const std::int64_t before = first.empty() ? 0 : first[static_cast<std::size_t>(i / tokens)];
    places.data<std::int64_t>()[i] = std::min(offset + before + i % tokens, last);
  }
  table.forward(places.view().expand(ids), x, {.write = nn::Write::add, .executor = executor});
}

// An output that a call may leave absent, and the shape that it must have.
struct WantedOutput {
  Operand operand;
  Shape shape;
};

// Error if a given output has another shape, is not floating, or overlaps a parameter, another output or a tensor in `read`.
template <class M>
void require_wanted(const char* operation, std::span<const WantedOutput> outputs, std::span<const Operand> read, const M& model) {
  std::vector<Operand> written;
  for (const auto& [operand, shape] : outputs) {
    if (!operand.view) continue;
    nn::require_shape(operation, operand, shape);
    require(is_floating(operand.view.dtype()), operation, ": ", operand.name, " is ", operand.view.dtype(), "; it must be floating");
    nn::require_parameters_separate(operation, {operand}, model);
    written.push_back(operand);
  }
  require_no_overlap(operation, written, read);
}

}  // namespace polyhead::models
