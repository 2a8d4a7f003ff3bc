// A pass through the layers of an nn::Encoder that also gives what is inside of them.
#pragma once

#include <string_view>
#include <vector>

#include "core/overlap.h"
#include "polyhead/nn/encoder_layer.h"

namespace polyhead::models {

struct LayerOutputs {
  TensorView all_hidden = {};         // [L+1,*,T,E]: x, then each layer's output, before the final norm
  TensorView attentions = {};         // [L,*,N,T,T]
  TensorView q = {}, k = {}, v = {};  // [L,*,N,T,H]
};

// An output that a caller may ask for: its name, its view, which may be absent, and the shape that it must have.
struct WantedOfEncoder {
  Operand operand;
  Shape shape;
};
// Those of LayerOutputs, for an input [*,T,E].
std::vector<WantedOfEncoder> wanted(const LayerOutputs& outputs, const nn::EncoderLayerConfig& layer, std::int64_t layers, const Shape& x);

// Error unless each output that is there has its shape, a floating dtype, and memory of its own. Returns those that are there.
std::vector<Operand> require_outputs(std::string_view operation, const std::vector<WantedOfEncoder>& all, std::span<const Operand> inputs);

// The output [*,T,E] of the last layer, before the final norm. attention.workspace is required.
Tensor run_layers(const nn::Encoder& stack, Tensor x, const LayerOutputs& outputs, const nn::AttentionOptions& attention);

}  // namespace polyhead::models
