// Turns the attention parameters of a file into a layer, and a layer into parameters for a file.
#pragma once

#include <string_view>

#include "polyhead/io/attention_parameters.h"
#include "polyhead/nn/multi_head_attention.h"

#pragma GCC visibility push(default)
namespace polyhead::models {

// Returns a layer that has the given tensors; they are moved, not copied. Widths, heads, biases, gate, output projection, add_bias_kv and dtype come from
// `parameters`; so do scale and empty_rows if the file gives them. `settings` gives what no file holds: axis, add_zero_attn, dropout, softcap, and whether a
// global query is the plain or the masked mean. A setting that `parameters` already determines may be left out; Error if it contradicts them.
// Error when the number of heads is unknown or does not divide the widths, or when the layer has no place for a tensor. It has none for
// relative_attention_bias: pass the bias to forward() instead.
nn::MultiHeadAttention attention_layer(io::AttentionParameters parameters, const nn::MultiHeadAttentionConfig& settings = {});

// Returns the parameters of a layer, or of its gradients, under the canonical names that store_attention() takes. The result lacks the settings that no file
// holds (axis, dropout, softcap, add_zero_attn, precision, masked_mean): pass them to attention_layer() as `settings`.
io::AttentionParameters attention_parameters(const nn::MultiHeadAttention& layer, std::string_view layout, std::string_view prefix = {});

}  // namespace polyhead::models
#pragma GCC visibility pop
