// The inputs and options with which attend and trace call a layer.
#pragma once

#include <string>
#include <vector>

#include "attention_rules.h"
#include "input_tensors.h"
#include "layer_file.h"
#include "polyhead/nn/multi_head_attention.h"

namespace polyhead::app {

// `input` and `options` are views of the tensors.
struct LayerCall {
  Tensor query, key, value, bias, keep;
  MaskMemory mask_memory;
  nn::AttentionInput input;
  nn::AttentionOptions options;
  Shape weights, lead;    // shape of the attention weights [*,N,T,S'], and its *
  std::int64_t keys = 0;  // S: without the keys that add_bias_kv and add_zero_attn append
};

// Reads query and, if the file has them, key, value, bias and dropout_keep, in the layer's dtype.
void read_inputs(InputTensors* in, const LoadedLayer& loaded, LayerCall* call);

// Sets `input` and the sizes. Checks the inputs.
void set_input(const LoadedLayer& loaded, LayerCall* call);

// [1,..,1,N,T,S]: a bias for each head, query and key, the same for all sequences.
Shape shared_bias_shape(const LayerCall& call);

// Sets `options` from the rules, the defaults of the layer's layout, and the masks of `in`, which may be nullptr.
void set_options(const LoadedLayer& loaded, AttentionRules rules, InputTensors* in, LayerCall* call);

}  // namespace polyhead::app
