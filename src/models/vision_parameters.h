#pragma once

#include "models/checkpoint.h"
#include "models/vision_families.h"

namespace polyhead::models {

// The names of the tensors in a layer of a Vision Transformer or of the text encoder beside it.
struct LayerNames {
  std::string_view attention_norm, feed_forward_norm, q, k, v, attention_output, hidden, feed_forward_output;
};
nn::EncoderLayer load_layer(Checkpoint& file, const LayerNames& names, const nn::LayerConfig& config, const std::string& prefix);

// Loads the tensors of an image encoder, with its classifier or projection. Sets *root to the part that the file puts before the names of the classifier, the
// projection and the text encoder.
VisionEncoder load_vision_side(Checkpoint& file, const VisionFamily& family, VisionConfig config, std::string* root);

}  // namespace polyhead::models
