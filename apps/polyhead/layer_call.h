// The inputs and options with which attend and trace call a layer.
#pragma once

#include <string>
#include <vector>

#include "attention_rules.h"
#include "input_tensors.h"
#include "layer_file.h"
#include "polyhead/nn/multi_head_attention.h"

namespace polyhead::app {

// Owns what the views in `input` and `options` point to, except the lists of AttentionRules and the tensors of the input file.
struct LayerCall {
  Tensor query, key, value, bias, keep;
  nn::AttentionInput input;
  nn::AttentionOptions options;
  Shape weights, lead;    // shape [*,N,T,S'] of the attention weights, S' = S plus added keys; its dimensions *
  std::int64_t keys = 0;  // S, without the keys that add_bias_kv and add_zero_attn append
};

// Reads query and, if the file has them, key, value, bias and dropout_keep, in the layer's dtype.
void read_inputs(InputTensors* in, const LoadedLayer& loaded, LayerCall* call);

// Sets `input`, `weights`, `lead` and `keys`. Error if the shapes of the inputs do not fit the layer.
void set_input(const LoadedLayer& loaded, LayerCall* call);

// [1,..,1,N,T,S]: a bias for each head, query and key, the same for all sequences.
Shape shared_bias_shape(const LayerCall& call);

// Sets `options` from the rules, the defaults of the layer's layout, and the masks of `in`, which may be nullptr. They have views of all
// three.
void set_options(const LoadedLayer& loaded, const AttentionRules& rules, InputTensors* in, LayerCall* call);

}  // namespace polyhead::app
