// Derivatives of attention beyond its gradient: forward mode (`sdpa_jvp`), and the gradient of the backward pass (`sdpa_backward_backward`). The latter serves
// a loss that depends on gradients, for example on forces, which are the gradient of an energy. docs/maths.md, section 3a, has the formulas. Letters and
// options are those of polyhead/sdpa.h. Memory grows with T + S. Dropout uses the keep bits of its seed, and treats them as constants. Products are always
// exact: options.precision has no effect.
#pragma once

#include "polyhead/sdpa.h"

#pragma GCC visibility push(default)
namespace polyhead {

// The tangents of the inputs: one tensor for each input that has a derivative, in its shape and dtype. An absent tensor means zeros.
struct SdpaTangents {
  [[no_unique_address]] NamedMembers named_members = NamedMembers();
  ConstTensorView q, k, v;
  ConstTensorView bias = {};           // tangent of options.bias
  ConstTensorView relative_bias = {};  // tangent of options.relative_bias.slopes or .table
  ConstTensorView sink = {};           // tangent of options.sink
};

// Forward mode: computes the derivatives of out and lse along the tangents of the inputs, which are the products of the Jacobians and the tangents.
struct SdpaJvp {
  ConstTensorView q, k, v;       // the tensors that the forward pass read, in one dtype
  ConstTensorView out, lse;      // the outputs of the forward pass
  SdpaTangents tangents;
  TensorView out_tangent;        // [*,N,T,V], of the dtype of q
  TensorView lse_tangent = {};   // [*,N,T], optional; of the dtype of lse
};

// The gradient of a loss that is a function of the results of sdpa_backward: d_q, d_k, d_v, d_bias, d_relative_bias and d_sink.
struct SdpaBackwardBackward {
  ConstTensorView q, k, v, out, lse, d_out;  // the tensors that sdpa_backward() read
  SdpaTangents d_gradients;  // the gradient of the loss by d_q, d_k, d_v, d_bias, d_relative_bias and d_sink
  // The results: the gradient of the loss by the inputs of sdpa_backward(), where out and lse count as functions of q, k and v. A result is computed if its
  // view is given.
  TensorView d_q, d_k, d_v;       // the gradients by q, k and v, in their shapes
  TensorView d_d_out = {};        // [*,N,T,V]: the gradient by d_out
  TensorView d_bias = {}, d_relative_bias = {}, d_sink = {};  // d_bias, d_relative_bias and d_sink are as in SdpaBackward
};

void sdpa_jvp(const SdpaJvp& tensors, const SdpaOptions& options = {});
void sdpa_backward_backward(const SdpaBackwardBackward& tensors, const SdpaOptions& options = {});

}  // namespace polyhead
#pragma GCC visibility pop
