// Parts of BertEncoder: the sizes of its layers, and the position ids and scale factors of its embeddings.
#pragma once

#include "polyhead/models/bert.h"

namespace polyhead::models {

inline nn::LayerConfig layer_config(const BertConfig& config, nn::Seed seed) {
  return {.width = config.width,
          .heads = config.heads,
          .hidden_width = config.hidden_width,
          .activation = config.activation,
          .gated = config.gated,
          .bias = config.bias,
          .output_bias = config.bias,
          .feed_forward_bias = config.feed_forward_bias,
          .norm_position = config.norm_position,
          .epsilon = config.epsilon,
          .dtype = config.dtype,
          .seed = seed};
}

// Returns the position of each token of ids [*,T], which is a row of the position table. The shape is [T], or [*,T] if config.padding_token is set. Error if
// the table has too few rows.
Tensor position_ids(const BertConfig& config, ConstTensorView ids);

// For a model with config.mask_token: returns the factors [*,T] by which the word embeddings are multiplied, float32 or float64. Error if a text has only mask
// tokens.
Tensor word_scales(const BertConfig& config, const BertInput& input);

}  // namespace polyhead::models
