// A layer and what it is called with, as commands prepare it.
#pragma once

#include <string>
#include <vector>

#include "attention_rules.h"
#include "input_tensors.h"
#include "layer_file.h"
#include "polyhead/nn/multi_head_attention.h"

namespace polyhead::app {

// The inputs, and the memory that the views of `input` and `options` look at.
struct LayerCall {
  Tensor query, key, value, bias, lengths, keep;
  nn::AttentionInput input;
  nn::AttentionOptions options;
  Shape maps, lead;       // [*,N,T,S'], and its *
  std::int64_t keys = 0;  // S: without the keys that the layer adds
};

// query, and as far as they are there key, value, bias and dropout_keep, in the layer's dtype.
void read_inputs(InputTensors* in, const LoadedLayer& loaded, LayerCall* call);

// Sizes, which also checks the inputs.
void measure(const LoadedLayer& loaded, LayerCall* call);

// [1,..,N,T,S]: of a bias for each head and pair, the same for all sequences.
Shape head_bias_shape(const LayerCall& call);

// The options: the rules where they are given, else the source's own, and the masks of `in`, which may be nullptr.
void prepare(const LoadedLayer& loaded, AttentionRules rules, InputTensors* in, LayerCall* call);

}  // namespace polyhead::app
