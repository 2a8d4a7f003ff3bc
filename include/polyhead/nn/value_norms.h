// Value norms: how large the vectors are by which attention weights are multiplied. They are the norms of the transformed value vectors f of Kobayashi et al.
// 2020, "Attention is Not Only a Weight: Analyzing Transformers with Vector Norms". A layer's output for query t is
//   output[t] = bias + sum over heads n and keys s of p[n,t,s] f[n,s],     f[n,s] = W_O^n v[n/(N/K),s]   (their f(x) = (x W^V + b^V) W^O)
// where W_O^n are the columns [n V, (n+1) V) of the output projection's weight [E,N V]. The norm-weighted map is |p[n,t,s] f[n,s]| = p[n,t,s] |f[n,s]|, so
// one norm for each key and head is enough. f includes neither the bias of the output projection nor a norm after it.
#pragma once

#include <span>

#include "polyhead/nn/multi_head_attention.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

// Writes out[*,n,s] = |f[n,s]|, the Euclidean norm. v is [*,K,S,V] and out is [*,N,S], of any floating dtype and strides; N is a multiple of K. If `output` has
// no weight (a layer without an output projection), W_O is the identity. Computed in float32, or in float64 if v or the weight is float64; the squares are
// summed in float64. Besides out, the function needs memory for a head's slice of the weight, E x V, and for a block of 64 x (V + E) numbers. Error if the
// shapes do not fit: the weight must be [E,N V].
void value_norms(ConstTensorView v, const Linear& output, TensorView out, const RunOptions& options = {});

// Computes value norms for several layers of a model that have the same extents: v [L,*,K,S,V], out [L,*,N,S]. Error for a layer with a gate: each query's gate
// also multiplies the values, so a key has no single norm.
void value_norms(std::span<const MultiHeadAttention* const> layers, ConstTensorView v, TensorView out, const RunOptions& options = {});

// Turns attention weights into norm-weighted maps: map[*,n,t,s] *= norms[*,n,s]. norms is [*,N,S] and map is [*,N,T,S], both floating. An attention weight of
// exactly 0 stays 0 even if the norm is NaN or infinity, because a masked key does not exist.
void weight_by_norms(ConstTensorView norms, TensorView map);

}  // namespace polyhead::nn
#pragma GCC visibility pop
