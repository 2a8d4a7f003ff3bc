// The backward pass of attention_map(), and of lse where it takes a [T,S] tensor.
#pragma once

#include <cstdint>
#include <span>

#include "polyhead/maps.h"

#pragma GCC visibility push(default)
namespace polyhead {

// With p the attention weights, m what dropout multiplies them by (1 for MapValue::probability) and d_p = m d_map:
//   d_score = p (d_p - sum_s p d_p + d_lse)          docs/maths.md, eq. 7 and 7b
// and from it the other gradients as in the backward pass of attention. Elements of d_map where p is 0 are not read.
struct MapBackward {
  ConstTensorView d_map = {};  // [*,N,T,S], or [*,heads.size(),T,S]; floating. Absent: zeros
  ConstTensorView d_lse = {};  // [*,N,T] floating. Absent: zeros
  std::span<const std::int64_t> heads = {};  // which heads d_map and d_lse have, each once; empty: all. The others have no gradient.
  TensorView d_q = {}, d_k = {};  // shaped as q and k, floating; a gradient without a view is not computed
  TensorView d_bias = {};           // as in SdpaBackward, and so are those that follow
  TensorView d_relative_bias = {};
  TensorView d_sink = {};
  bool add = false;  // d_q and d_k are added to what the views hold
};

// value: probability or dropped, as given to attention_map(). Memory: a few rows of each head that is computed, and a copy of its q and k. Error with
// EmptyRows::uniform and with a score rule.
void attention_map_backward(const MapsInput& input, const MapBackward& gradients, const SdpaOptions& options = {}, MapValue value = MapValue::probability);

}  // namespace polyhead
#pragma GCC visibility pop
