// The queries, keys and values from which a model computed the attention weights of one text.
#pragma once

#include <optional>
#include <span>

#include "polyhead/nn/rotary_embedding.h"
#include "polyhead/tensor.h"

#pragma GCC visibility push(default)
namespace polyhead::models {

// The q, k and v of all layers for one text of T tokens. For layer l and head n the attention weights are p[l,n,t,s] = softmax over s of <q[l,n,t], k[l,n,s]> /
// sqrt(H), over the keys that t may attend to.
struct HeadVectors {
  Tensor q, k, v;  // [L,N,T,H] [L,N,S,H] [L,N,S,V]
};

// How rotary positions rotated the q and k of a text.
struct LayerRotations {
  Tensor cos, sin;  // [L,T,R/2], or [1,T,R/2] if they are the same in all layers
  nn::RotaryOrder order = nn::RotaryOrder::halves;
  std::int64_t width = 0;  // R: the first R features of a head are rotated; 0: all
};

// Returns the rotations for several layers, from their rotary tables. Absent if a layer is not rotated, or if layers differ in order or width.
std::optional<LayerRotations> layer_rotations(std::span<const nn::Rotary> layers);

}  // namespace polyhead::models
#pragma GCC visibility pop
