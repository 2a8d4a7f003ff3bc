// A layer from a file of parameters, and the inputs and options with which attend and trace call a layer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "attention_rules.h"
#include "input_tensors.h"
#include "polyhead/io/attention_parameters.h"
#include "polyhead/nn/multi_head_attention.h"
#include "polyhead/nn/rotary_embedding.h"

namespace polyhead::app {

struct LayerFile {
  std::string path, layout;
  std::optional<std::string> prefix;
  std::optional<std::int64_t> heads;
};

struct LoadedLayer {
  nn::MultiHeadAttention layer;
  std::string layout, prefix;
  io::Spelling spelling;
  // scale, global_query and causal as the layout defines them, before options change the layer
  std::optional<double> scale;
  bool global_query = false;
  bool causal = false;
  double rotary_base = 0;  // base of the rotary embedding; 0: q and k are not rotated
  // True if the file has T5's table of biases. The table is not applied, because the file does not say to which distances its rows belong.
  bool relative_bias = false;
  std::vector<std::string> names;  // the names that the layer's parameters have in the file
};

// Adds --layout and --prefix. Each command adds --parameters and --heads, because their help differs.
std::vector<Option*> add_layer_file(Parser& parser, LayerFile* file);

// Loads the layer with the defaults of its layout; the given rules override them.
LoadedLayer load_layer(const LayerFile& file, const AttentionRules& rules, const LayerRules& layer_rules);

// The inputs and options of a layer's call. It owns the memory to which their views refer, except that of the lists in AttentionRules and of the input file's
// tensors.
struct LayerCall {
  Tensor query, key, value, bias, keep;
  nn::RotaryTables query_rotary, key_rotary;
  nn::AttentionInput input;
  nn::AttentionOptions options;
  // weights: the shape [*,N,T,S'] of the attention weights, where S' counts appended keys too. lead: the leading dimensions *.
  Shape weights, lead;
  std::int64_t keys = 0;  // number of keys S in the input, without the keys that add_bias_kv and add_zero_attn append
};

// Reads query and, if the file has them, key, value, bias and dropout_keep, in the layer's dtype.
void read_inputs(InputTensors* in, const LoadedLayer& loaded, LayerCall* call);

// Sets `input`, `weights`, `lead` and `keys`. Error if the shapes of the inputs do not fit the layer.
void set_input(const LoadedLayer& loaded, LayerCall* call);

// The shape [1,..,1,N,T,S] of a bias that differs between heads, queries and keys and is the same for all sequences.
Shape shared_bias_shape(const LayerCall& call);

// Sets `options` from the rules, the defaults of the layer's layout, and the masks of `in`, which may be nullptr. `options` then has views of these three objects.
// A relative bias and sink logits must be set in `options` before this call.
void set_options(const LoadedLayer& loaded, const AttentionRules& rules, InputTensors* in, LayerCall* call);

}  // namespace polyhead::app
