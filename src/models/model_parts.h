// Helpers, other than layers, that several models from transformers' folders share: outputs of all layers, checks of outputs, positions.
#pragma once

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "nn/check.h"
#include "nn/elementwise.h"
#include "polyhead/maps.h"
#include "polyhead/nn/embedding.h"
#include "polyhead/nn/encoder_layer.h"
#include "polyhead/nn/linear.h"

namespace polyhead::models {

inline Shape with_leading(Shape shape, std::int64_t extent) {
  shape.insert(0, extent);
  return shape;
}

// Multiplies x by `factor`; the factor is first rounded to the dtype of x.
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

// Outputs of all L layers of a model. Each is optional.
struct LayerOutputs {
  TensorView all_hidden = {};          // [L+1,*,T,E]: the input of the first layer, then each layer's output; the last one is the result of through_layers()
  TensorView attentions = {};          // [L,*,N,T,S]
  TensorView pooled = {};              // [L,*,N,h,w]
  Pooling pooling = Pooling::largest;  // how the attention weights of a block become one value of `pooled`
  TensorView q = {}, k = {}, v = {};   // [L,*,N,T,H]

  // Returns whether an output other than all_hidden is given, so that write() needs what the attention of a layer saved.
  bool of_heads() const { return attentions || pooled || q || k || v; }
  // Writes the outputs of one layer, except all_hidden.
  void write(const nn::MultiHeadAttention::Saved& saved, std::int64_t layer, Executor* executor) const {
    if (attentions || pooled) {
      SdpaOptions sdpa = saved.sdpa;
      sdpa.executor = executor;
      if (attentions) attention_map(saved.maps(), attentions.select(0, layer), sdpa);
      if (pooled) attention_pooled_map(saved.maps(), pooled.select(0, layer), sdpa, pooling);
    }
    if (q) copy(saved.q_heads, q.select(0, layer));
    if (k) copy(saved.k_heads, k.select(0, layer));
    if (v) copy(saved.v_heads, v.select(0, layer));
  }
};

// Returns the shapes that LayerOutputs must have for an input x [*,T,E] of layers without pooled maps.
inline std::vector<WantedOutput> wanted(const LayerOutputs& outputs, const nn::LayerConfig& layer, std::int64_t layers, const Shape& x) {
  const std::int64_t tokens = x[-2];
  const Shape lead = with_leading(x.first(x.size() - 2), layers), heads = appended(lead, {layer.heads, tokens, layer.width / layer.heads});
  return {{{"all_hidden", outputs.all_hidden}, with_leading(x, layers + 1)},
          {{"attentions", outputs.attentions}, appended(lead, {layer.heads, tokens, tokens})},
          {{"q", outputs.q}, heads},
          {{"k", outputs.k}, heads},
          {{"v", outputs.v}, heads}};
}

// Passes x through a stack of layers and through the norm after it, if there is one; returns the result. layer(i, x, y) computes layer i. all_hidden
// [L+1,*,T,E], if given, gets x, the outputs of all layers but the last, and the result.
template <class F>
Tensor through_layers(std::int64_t layers, const nn::Norm& final_norm, Tensor x, TensorView all_hidden, const nn::RunOptions& run, const F& layer) {
  Tensor y = uninitialised(x.dtype(), x.shape(), run.workspace);
  if (all_hidden) copy(x, all_hidden.select(0, 0));
  for (std::int64_t i = 0; i < layers; ++i) {
    layer(i, x, y);
    std::swap(x, y);
    if (all_hidden && i + 1 < layers) copy(x, all_hidden.select(0, i + 1));
  }
  if (final_norm.weight) {
    final_norm.forward(x, y, run);
    std::swap(x, y);
  }
  if (all_hidden) copy(x, all_hidden.select(0, layers));
  return x;
}

// Does what through_layers() does, for the layers of an encoder, and also writes `outputs`. options(i) returns the options of layer i.
template <class F>
Tensor through_encoder(const nn::Encoder& stack, const nn::Norm& final_norm, Tensor x, const LayerOutputs& outputs, const nn::RunOptions& run, const F& options) {
  return through_layers(std::ssize(stack.layers), final_norm, std::move(x), outputs.all_hidden, run, [&](std::int64_t i, const Tensor& in, Tensor& out) {
    nn::EncoderLayer::Saved saved;
    stack.layers[static_cast<std::size_t>(i)].forward(in, out, options(i), outputs.of_heads() ? &saved : nullptr);
    outputs.write(saved.attention, i, run.executor);
  });
}

}  // namespace polyhead::models
