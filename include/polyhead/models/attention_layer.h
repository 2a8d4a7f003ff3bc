// Converts the attention parameters of a file to a layer, and a layer to parameters of a file.
#pragma once

#include <string_view>

#include "polyhead/io/attention_parameters.h"
#include "polyhead/nn/multi_head_attention.h"

#pragma GCC visibility push(default)
namespace polyhead::models {

// Returns a layer of the given tensors, which are moved, not copied. Widths, heads, biases, gate, output projection, add_bias_kv, dtype and, if the file gives
// them, scale and empty_rows come from `parameters`. `settings` give what no file holds: axis, add_zero_attn, dropout, softcap, and whether a global query is
// the plain or the masked mean. A setting that `parameters` already determine may be left out; it is an Error if it contradicts them. Error when the number of
// heads is unknown or does not divide the widths, or when a tensor has no place in the layer (such as relative_attention_bias: pass the bias of each pair to
// forward() instead).
nn::MultiHeadAttention attention_layer(io::AttentionParameters parameters, const nn::MultiHeadAttentionConfig& settings = {});

// Returns the parameters of a layer (or of its gradients) under the canonical names that store_attention takes. They lack the settings that
// no file holds (axis, dropout, softcap, add_zero_attn, precision, masked_mean): pass those to attention_layer as `settings`.
io::AttentionParameters attention_parameters(const nn::MultiHeadAttention& layer, std::string_view layout, std::string_view prefix = {});

}  // namespace polyhead::models
#pragma GCC visibility pop
