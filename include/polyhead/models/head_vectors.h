// The queries, keys and values from which a model computed the attention weights of one text.
#pragma once

#include <optional>
#include <span>

#include "polyhead/nn/rotary_embedding.h"
#include "polyhead/tensor.h"

#pragma GCC visibility push(default)
namespace polyhead::models {

// p[l,n,t,s] = softmax over s of <q[l,n,t], k[l,n,s]> / sqrt(H), over the keys that t may attend to.
struct HeadVectors {
  Tensor q, k, v;  // [L,N,T,H] [L,N,S,H] [L,N,S,V]
};

// The rotations that rotary positions applied to the q and k of a text.
struct LayerRotations {
  Tensor cos, sin;  // [L,T,R/2], or [1,T,R/2] if they are the same in all layers
  nn::RotaryOrder order = nn::RotaryOrder::halves;
  std::int64_t width = 0;  // R: the first R features of a head are rotated; 0: all
};

// The rotations of layers that have these tables. Absent if a layer is not rotated, or if layers differ in order or width.
std::optional<LayerRotations> layer_rotations(std::span<const nn::Rotary> layers);

}  // namespace polyhead::models
#pragma GCC visibility pop
