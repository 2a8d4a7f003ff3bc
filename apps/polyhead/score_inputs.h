// What attention without a layer reads from a file of tensors to compute scores: q, k, bias, sink logits, a relative bias and masks.
#pragma once

#include <string>

#include "attention_rules.h"
#include "input_tensors.h"
#include "polyhead/sdpa.h"

namespace polyhead::app {

// Sink logits and relative bias, each in the dtype of q or of lse.
struct Learned {
  Tensor sink, slopes, table;
  RelativeBias relative_bias;

  Learned(InputTensors* in, const AttentionRules& rules, DType dtype);
};

struct ScoreInputs {
  Tensor q, k, bias;
  Learned learned;
  SdpaOptions options;  // has views of all of these

  // `required` says when q and k must be in the file. With `layers` their first dimension is the layer, which masks do not have.
  ScoreInputs(InputTensors* in, const AttentionRules& rules, const char* operation, const char* required, bool layers = false);
  ScoreInputs(const ScoreInputs&) = delete;
  ScoreInputs& operator=(const ScoreInputs&) = delete;
  ~ScoreInputs() = default;
};

}  // namespace polyhead::app
