// Attention with a bias made from a pair tensor z, for models of proteins, where z has a vector for each pair of positions (AttentionPairBias: Abramson et al.
// 2024, AlphaFold 3, supplementary algorithm 24). The bias [*,N,T,S] is never stored whole.
//
//   bias[*,n,t,s] = sum_c weight[n,c] LayerNorm(z[*,t,s,:])[c] + b[n]
//   out           = output(sigmoid(gate(x)) * merged heads of softmax(q k^T * scale + bias, attended keys) v)        q = q(x), k = k(keys), v = v(keys)
//
// The bias is computed for a block of queries at a time, used and dropped; the backward pass computes it again. Memory beyond inputs, outputs and gradients
// is one block of the bias, at most max(2 MiB, 32 rows of one [N,T,S]). The backward pass takes two such blocks and, for gradients of PairBias, (N + 2) / 256
// of the size of z in float32. If several passes share a bias (samples of a diffusion), compute it once by PairBias::forward and give it as `pair_bias`.
//
// Letters: N heads, T queries, S keys, C width of z, E, Ek widths of the query and key input, H width of a head; * leading dimensions. z has as many leading
// dimensions as the query input, each of the same extent or of extent 1: samples then share z, and its gradient is the sum over the samples.
#pragma once

#include <optional>

#include "polyhead/empty_rows.h"
#include "polyhead/nn/layer_norm.h"
#include "polyhead/nn/linear.h"
#include "polyhead/nn/seed.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

struct PairBiasConfig {
  std::int64_t pair_width = 0;  // C
  std::int64_t heads = 0;       // N
  double epsilon = 1e-5;        // epsilon of the norm
  bool norm_bias = true;
  bool bias = false;            // whether the projection has a bias
  DType dtype = DType::f32;
  Seed seed;  // draws the initial parameters
};

// The bias of attention scores that a pair tensor gives: a layer norm of z, projected to the heads. Initialised as torch.nn.LayerNorm and torch.nn.Linear.
struct PairBias : Module<PairBias> {
  LayerNorm norm;     // norm of width C
  Linear projection;  // weight [N,C]; a bias [N] or none

  PairBias() = default;
  explicit PairBias(const PairBiasConfig& config);
  PairBias(LayerNorm norm, Linear projection);  // takes existing parameters; Error unless their widths and dtypes agree

  std::int64_t pair_width() const { return projection.in_width(); }
  std::int64_t heads() const { return projection.out_width(); }

  // z [*,T,S,C] -> bias [*,N,T,S], both of the parameters' dtype, with any strides. LayerNorm(z) is not kept.
  void forward(ConstTensorView z, TensorView bias, const RunOptions& options = {}) const;
  // d_bias [*,N,T,S]. gradients.x is the gradient of z. The bits do not depend on the number of threads.
  void backward(ConstTensorView z, ConstTensorView d_bias, const Gradients<PairBias>& gradients, const RunOptions& options = {}) const;

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("norm", self.norm...);
    f("projection", self.projection...);
  }
};

// Attention of projected heads with the bias of a pair tensor.
struct PairBiasSdpa {
  ConstTensorView q, k, v;           // [*,N,T,H] [*,N,S,H] [*,N,S,V] of the dtype of the PairBias
  ConstTensorView z;                 // [*,T,S,C]
  ConstTensorView attend_keys = {};  // bool, broadcasts to [*,S]: true = may be attended to
  std::optional<double> scale{};     // absent: 1/sqrt(H)
  EmptyRows empty_rows = EmptyRows::zero;
};

// Writes out [*,N,T,V] and lse [*,N,T] (float64 for float64, else float32), with the same bits as sdpa_forward gives for the bias of PairBias::forward.
void pair_bias_sdpa_forward(const PairBias& pair, const PairBiasSdpa& input, TensorView out, TensorView lse, const RunOptions& options = {});

struct PairBiasSdpaGradients {
  TensorView q = {}, k = {}, v = {}, z = {};  // a gradient without a view is not computed
  PairBias* parameters = nullptr;
  Write parameters_write = Write::replace;
};

// out and lse must be those that the forward pass wrote. Gradients of k and v are summed over the blocks in the order of the queries, in float32 if the
// tensors have 16 bits.
void pair_bias_sdpa_backward(const PairBias& pair, const PairBiasSdpa& input, ConstTensorView out, ConstTensorView lse, ConstTensorView d_out,
                             const PairBiasSdpaGradients& gradients, const RunOptions& options = {});

}  // namespace polyhead::nn
#pragma GCC visibility pop
