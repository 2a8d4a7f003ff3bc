// The queries, keys and values from which a model computed the attention weights of one text.
#pragma once

#include "polyhead/tensor.h"

#pragma GCC visibility push(default)
namespace polyhead::models {

// p[l,n,t,s] = softmax over s of <q[l,n,t], k[l,n,s]> / sqrt(H), over the keys that t may attend to.
struct HeadVectors {
  Tensor q, k, v;  // [L,N,T,H] [L,N,S,H] [L,N,S,V]
};

}  // namespace polyhead::models
#pragma GCC visibility pop
