// q, k and v of the heads of a model that ran on one text, beside its attention weights.
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
