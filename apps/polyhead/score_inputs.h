// Reads the tensors from which scores are computed without a layer: q, k, bias, sink logits, a relative bias and masks.
#pragma once

#include <string>

#include "attention_rules.h"
#include "input_tensors.h"
#include "polyhead/sdpa.h"

namespace polyhead::app {

// Parameters of the scores that a model has learned: sink logits and a relative bias. Tensors in the dtype of q are used as they are; others are converted to
// the dtype of lse.
struct Learned {
  Tensor sink, slopes, table;
  RelativeBias relative_bias;

  Learned(InputTensors* in, const AttentionRules& rules, DType dtype);
};

struct ScoreInputs {
  Tensor q, k, bias;
  Learned learned;
  SdpaOptions options;  // its views refer to the members above

  // required: the part of an error message that says why q and k are needed. layers: true if the first dimension of q and k is the layer; masks do not have
  // this dimension.
  ScoreInputs(InputTensors* in, const AttentionRules& rules, const char* operation, const char* required, bool layers = false);
  ScoreInputs(const ScoreInputs&) = delete;
  ScoreInputs& operator=(const ScoreInputs&) = delete;
  ~ScoreInputs() = default;
};

}  // namespace polyhead::app
