// One attention layer of a model on a text, as `trace MODEL_DIR --text` shows it.
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
  Tensor input;                  // [1,T,E]: what the layers before it make of the text, normed if the layer norms before its attention
  bool normed = false;
  nn::AttentionOptions options;  // with views of what `kept` holds
  std::shared_ptr<const void> kept;
  std::string family;
  ProjectionNames names;
  std::int64_t index = 0, layers = 0;
  std::vector<std::string> pieces;  // T tokens
};

// The layer of this number, "" for 0, of an encoder or a decoder. UsageError if there is none. Error for other models, and for a text with more than `most_scores`
// pairs of tokens in all heads.
ModelLayer model_layer(const std::string& model, const std::string& text, const std::string& layer, std::int64_t most_scores);

}  // namespace polyhead::app
