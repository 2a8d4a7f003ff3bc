// One attention layer of a model, with its input for a text. `polyhead trace MODEL_DIR --text` shows it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "polyhead/nn/multi_head_attention.h"
#include "trace_sentences.h"

namespace polyhead::app {

struct ModelLayer {
  nn::MultiHeadAttention attention;
  // The input [1,T,E] of the layer's attention: the output of the previous layer, after the layer norm if the layer is pre-norm.
  Tensor input;
  bool normed = false;
  nn::AttentionOptions options;  // its views refer to tensors that `kept` owns
  std::shared_ptr<const void> kept;
  std::string family;
  ProjectionNames names;
  std::int64_t index = 0, layers = 0;
  std::vector<std::string> pieces;  // T tokens
};

// Reads the layer with the number `layer` ("" is 0) of an encoder or a decoder. UsageError if there is no such layer. Error for other models, and if all
// heads together have more than `most_scores` scores for the text.
ModelLayer model_layer(const std::string& model, const std::string& text, const std::string& layer, std::int64_t most_scores);

}  // namespace polyhead::app
