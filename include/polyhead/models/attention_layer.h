// Between a file's parameters in canonical form and a layer.
#pragma once

#include <string_view>

#include "polyhead/io/attention_parameters.h"
#include "polyhead/nn/multi_head_attention.h"

namespace polyhead::models {

// A layer around the file's tensors, which are moved, not copied. Widths, heads, biases, gate, output map, add_bias_kv, scale, empty_rows and
// dtype come from the weights as far as they say; what no file holds (axis, add_zero_attn, dropout, softcap, plain or masked mean of a global
// query) from `settings`. Error when the number of heads is unknown or does not divide the widths, or when a tensor has no place in the layer
// (relative_attention_bias: its bias is given to forward, pair by pair).
nn::MultiHeadAttention attention_layer(io::AttentionParameters weights, const nn::MultiHeadAttentionConfig& settings = {});

// The parameters of a layer (or of its gradients) under canonical names, as store_attention wants them.
io::AttentionParameters attention_parameters(const nn::MultiHeadAttention& layer, std::string_view layout, std::string_view prefix = {});

}  // namespace polyhead::models
