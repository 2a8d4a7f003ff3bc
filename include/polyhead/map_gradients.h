// The backward pass of attention_map(): computes the gradients of a loss that depends on attention maps, or on the lse of their rows. It computes rows of the
// maps again, as attention_map() does.
#pragma once

#include <cstdint>
#include <span>

#include "polyhead/maps.h"

#pragma GCC visibility push(default)
namespace polyhead {

// p are the attention weights. m is the factor by which dropout multiplies each weight: 0 or 1/(1 - dropout); 1 for MapValue::probability. With d_p = m d_map,
//   d_score = p (d_p - sum_s p d_p + d_lse)          docs/maths.md, eq. 7 and 7b
// The gradients of q, k and the biases follow from d_score as in the backward pass of attention. Elements of d_map where p is 0 have no effect, even if they
// are NaN.
struct MapBackward {
  ConstTensorView d_map = {};  // gradient of the maps: [*,N,T,S], or [*,heads.size(),T,S] if `heads` is given; floating. Absent: zeros
  ConstTensorView d_lse = {};  // gradient of the rows' lse: [*,N,T], or [*,heads.size(),T] if `heads` is given; floating. Absent: zeros
  // The heads that d_map and d_lse contain, each head once; empty: all heads. For all other heads d_map and d_lse count as 0.
  std::span<const std::int64_t> heads = {};
  TensorView d_q = {}, d_k = {};  // the gradients of q and k, with their shapes; floating. An absent gradient is not computed.
  TensorView d_bias = {};           // d_bias, d_relative_bias and d_sink have the meaning that they have in SdpaBackward
  TensorView d_relative_bias = {};
  TensorView d_sink = {};
  bool add = false;  // true: the gradients of q and k are added to what d_q and d_k hold; false: they replace it
};

// Computes the gradients of a map of attention weights. Pass the `value` that the map was computed with, MapValue::probability or MapValue::dropped. Each
// thread works on one head at a time and needs memory for a few rows of the head's map and for copies of the head's q and k; a d_bias that is not float64 also
// needs a float64 copy. Error with EmptyRows::uniform and with a score rule.
void attention_map_backward(const MapsInput& input, const MapBackward& gradients, const SdpaOptions& options = {}, MapValue value = MapValue::probability);

}  // namespace polyhead
#pragma GCC visibility pop
