#pragma once

#include <functional>

#include "polyhead/maps.h"
#include "polyhead/tensor.h"

namespace polyhead::models {

// Returns the attention weights [L,N,T,S] of every head for a pass over one sequence. `layers`: the Saved of each layer; `attention`: its member that
// holds the attention's Saved.
template <class Layers, class Member>
Tensor layer_maps(const Layers& layers, Member attention) {
  const auto& first = std::invoke(attention, layers.at(0));
  Tensor maps(first.q_heads.dtype(), {std::ssize(layers), 1, first.q_heads.extent(1), first.q_heads.extent(2), first.k_heads.extent(2)});
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto& saved = std::invoke(attention, layers[i]);
    attention_map(saved.maps(), maps.view().select(0, static_cast<std::int64_t>(i)), saved.sdpa);
  }
  return Tensor::copy_of(maps.view().select(1, 0));
}

}  // namespace polyhead::models
