// Runs the layers of an nn::Encoder and also returns their intermediate results.
#pragma once

#include <vector>

#include "models/model_parts.h"
#include "polyhead/nn/encoder_layer.h"

namespace polyhead::models {

struct LayerOutputs {
  TensorView all_hidden = {};         // [L+1,*,T,E]: x, then each layer's output, before the final norm
  TensorView attentions = {};         // [L,*,N,T,T]
  TensorView q = {}, k = {}, v = {};  // [L,*,N,T,H]
};

// Returns the shapes that LayerOutputs must have for an input x [*,T,E].
std::vector<WantedOutput> wanted(const LayerOutputs& outputs, const nn::LayerConfig& layer, std::int64_t layers, const Shape& x);

// Returns the output [*,T,E] of the last layer, before the final norm. attention.workspace is required.
Tensor run_layers(const nn::Encoder& stack, Tensor x, const LayerOutputs& outputs, const nn::AttentionOptions& attention);

}  // namespace polyhead::models
