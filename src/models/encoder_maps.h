#pragma once

#include "polyhead/nn/encoder_layer.h"

namespace polyhead::models {

// The attention weights [L,B,N,T,T] of every head from what a forward pass saved.
Tensor encoder_maps(const nn::Encoder::Saved& saved);

}  // namespace polyhead::models
