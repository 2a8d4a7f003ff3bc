// The backward pass from a loss on attention weights (AttentionWeightsGradient) to q and k.
#pragma once

#include <span>

#include "polyhead/nn/multi_head_attention.h"

namespace polyhead::nn {

// Error unless the backward pass of `layer` can use the gradients `given` of its attention weights [*,N,T,S'].
void require_attention_weights_gradients(const char* operation, std::span<const AttentionWeightsGradient> given, const MultiHeadAttention& layer,
                                         const MultiHeadAttention::Saved& saved, const MultiHeadAttention::Gradients& gradients);

// Adds the gradients of q and k to d_q [*,N,T,H] and d_k [*,K,S',H] (docs/maths.md, eq. 7c). Either tensor may be absent.
void add_attention_weights_gradients(std::span<const AttentionWeightsGradient> given, const MapsInput& input, const SdpaOptions& options,
                                     TensorView d_q, TensorView d_k);

// Returns the gradients in `given` that belong to one layer of a stack. Error if one names a layer that the stack does not have.
std::vector<AttentionWeightsGradient> of_layer(const char* operation, std::span<const AttentionWeightsGradient> given, std::size_t layer, std::size_t layers);

}  // namespace polyhead::nn
