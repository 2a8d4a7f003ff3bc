// The layers of a BERT-type encoder, which are those of polyhead/nn/encoder_layer.h.
#pragma once

#include "polyhead/nn/encoder_layer.h"

#pragma GCC visibility push(default)
namespace polyhead::models {

using nn::EncoderLayer, nn::LayerConfig;

}  // namespace polyhead::models
#pragma GCC visibility pop
