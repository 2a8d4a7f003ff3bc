#pragma once

#include "models/checkpoint.h"
#include "models/vision_families.h"

namespace polyhead::models {

// The names of the tensors of a layer of a Vision Transformer, on either side.
struct LayerNames {
  std::string_view attention_norm, feed_forward_norm, q, k, v, attention_output, hidden, feed_forward_output;
};
nn::EncoderLayer load_layer(Checkpoint& file, const LayerNames& names, const nn::LayerConfig& config, const std::string& prefix);

// Takes the tensors of an image encoder. `root` receives the prefix of the names of its heads, and of a text side.
VisionEncoder load_vision_side(Checkpoint& file, const VisionFamily& family, VisionConfig config, std::string* root);

}  // namespace polyhead::models
