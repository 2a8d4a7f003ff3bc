// How large the vectors are that attention weights multiply: the norms of the transformed value vectors of Kobayashi et al. 2020, "Attention is Not Only a
// Weight: Analyzing Transformers with Vector Norms". A layer's output for query t is
//   output[t] = bias + sum over heads n and keys s of p[n,t,s] f[n,s],     f[n,s] = W_O^n v[n/(N/K),s]   (their f(x) = (x W^V + b^V) W^O)
// where W_O^n are the columns [n V, (n+1) V) of the output projection's weight [E,N V]. The norm-weighted map is |p[n,t,s] f[n,s]| = p[n,t,s] |f[n,s]|, so
// one norm for each key and head is enough. Biases of the output projection and norms after it are no part of f.
#pragma once

#include <span>

#include "polyhead/nn/multi_head_attention.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

// out[*,n,s] = |f[n,s]|, Euclidean. v [*,K,S,V] and out [*,N,S] of any floating dtype and strides, N a multiple of K. Without a weight (a layer without an
// output projection) W_O is the identity. Computed in float32, in float64 if v or the weight is; the squares are summed in float64.
// Memory besides out: a head's slice of the weight, E x V, and a block of 64 x (V + E). Error if the shapes do not fit: the weight must be [E,N V].
void value_norms(ConstTensorView v, const Linear& output, TensorView out, const RunOptions& options = {});

// The same for the layers of a model, all with the same extents: v [L,*,K,S,V], out [L,*,N,S]. Error for a layer with a gate: the gate of a query multiplies the
// values too, so there is no one norm for a key.
void value_norms(std::span<const MultiHeadAttention* const> layers, ConstTensorView v, TensorView out, const RunOptions& options = {});

// Makes norm-weighted maps of attention weights: map[*,n,t,s] *= norms[*,n,s]. norms [*,N,S], map [*,N,T,S], both floating. A weight of exactly 0 stays 0, also if
// the norm is NaN or infinity, because a masked key does not exist.
void weight_by_norms(ConstTensorView norms, TensorView map);

}  // namespace polyhead::nn
#pragma GCC visibility pop
