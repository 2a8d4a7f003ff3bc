#pragma once

#include <functional>

#include "polyhead/maps.h"
#include "polyhead/models/head_vectors.h"
#include "polyhead/tensor.h"

namespace polyhead::models {

// Returns the attention weights [L,N,T,S] of every head for a pass over one sequence. `layers` has the Saved of each layer; `attention` is the member of it
// that holds the Saved of the layer's attention.
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

// Returns the queries and keys from which layer_maps() computes its maps, and the values.
template <class Layers, class Member>
HeadVectors layer_vectors(const Layers& layers, Member attention) {
  HeadVectors vectors;
  const auto count = std::ssize(layers);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto& saved = std::invoke(attention, layers[static_cast<std::size_t>(i)]);
    const auto keep = [&](Tensor& all, const ConstTensorView& heads) {
      const ConstTensorView own = heads.select(0, 0);
      if (!all) all = Tensor(own.dtype(), {count, own.extent(0), own.extent(1), own.extent(2)});
      copy(own, all.view().select(0, i));
    };
    keep(vectors.q, saved.q_heads), keep(vectors.k, saved.k_heads), keep(vectors.v, saved.v_heads);
  }
  return vectors;
}

}  // namespace polyhead::models
