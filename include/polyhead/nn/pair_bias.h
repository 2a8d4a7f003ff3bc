// Attention with a bias that is computed from a pair tensor z. In models of proteins z has a vector for each pair of positions (AttentionPairBias: Abramson et
// al. 2024, AlphaFold 3, supplementary algorithm 24). The bias [*,N,T,S] is never stored whole.
//
//   bias[*,n,t,s] = sum_c weight[n,c] LayerNorm(z[*,t,s,:])[c] + b[n]
//   out           = output(sigmoid(gate(x)) * merged heads of softmax(q k^T * scale + bias, attended keys) v)        q = q(x), k = k(keys), v = v(keys)
//
// The bias of a block of queries is computed, used and dropped before the next block; the backward pass computes it again. Besides inputs, outputs and
// gradients, the forward pass needs memory for one block of the bias: at most max(2 MiB, 32 rows of one [N,T,S]). The backward pass needs two such blocks and,
// for the gradients of PairBias, (N + 2) / 256 of the size of z in float32. If several passes share a bias, as samples of a diffusion do, compute it once with
// PairBias::forward() and pass it as `pair_bias`.
//
// Letters: N heads, T queries, S keys, C width of z, E and Ek widths of the query and key input, H width of a head; * leading dimensions. z has as many leading
// dimensions as the query input, each with the same extent or with the extent 1. If the extent is 1, samples share z, and the gradient of z is the sum over the
// samples.
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
  bool bias = false;            // true: the projection has a bias
  DType dtype = DType::f32;
  Seed seed;  // the initial parameters are drawn with this seed
};

// Computes a bias of attention scores from a pair tensor z: a layer norm of z, projected to the heads. Initial parameters are those of torch.nn.LayerNorm and
// torch.nn.Linear.
struct PairBias : Module<PairBias> {
  LayerNorm norm;     // of width C
  Linear projection;  // weight [N,C]; bias [N] or absent

  PairBias() = default;
  explicit PairBias(const PairBiasConfig& config);
  PairBias(LayerNorm norm, Linear projection);  // uses existing parameters; Error unless their widths and dtypes fit together

  std::int64_t pair_width() const { return projection.in_width(); }
  std::int64_t heads() const { return projection.out_width(); }

  // Computes bias [*,N,T,S] from z [*,T,S,C]. Both have the parameters' dtype, and any strides. LayerNorm(z) is not kept.
  void forward(ConstTensorView z, TensorView bias, const RunOptions& options = {}) const;
  // d_bias is [*,N,T,S]; gradients.x is the gradient of z. The bits of the results do not depend on the number of threads.
  void backward(ConstTensorView z, ConstTensorView d_bias, const Gradients<PairBias>& gradients, const RunOptions& options = {}) const;

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("norm", self.norm...);
    f("projection", self.projection...);
  }
};

// The input of attention with the bias of a pair tensor, for heads that are already projected.
struct PairBiasSdpa {
  ConstTensorView q, k, v;           // [*,N,T,H] [*,N,S,H] [*,N,S,V], of the dtype of the PairBias
  ConstTensorView z;                 // [*,T,S,C]
  ConstTensorView attend_keys = {};  // bool, broadcasts to [*,S]: true = queries may attend to the key
  std::optional<double> scale{};     // the factor of the scores; absent: 1/sqrt(H)
  EmptyRows empty_rows = EmptyRows::zero;
};

// Writes out [*,N,T,V] and lse [*,N,T], which is float64 for float64 inputs, else float32. The bits are those of sdpa_forward() with the bias of
// PairBias::forward().
void pair_bias_sdpa_forward(const PairBias& pair, const PairBiasSdpa& input, TensorView out, TensorView lse, const RunOptions& options = {});

struct PairBiasSdpaGradients {
  TensorView q = {}, k = {}, v = {}, z = {};  // a gradient is computed if its view is given
  PairBias* parameters = nullptr;
  Write parameters_write = Write::replace;
};

// Pass the out and lse that the forward pass wrote. The gradients of k and v are summed over the blocks of queries in their order; for 16-bit tensors the sums
// are float32.
void pair_bias_sdpa_backward(const PairBias& pair, const PairBiasSdpa& input, ConstTensorView out, ConstTensorView lse, ConstTensorView d_out,
                             const PairBiasSdpaGradients& gradients, const RunOptions& options = {});

}  // namespace polyhead::nn
#pragma GCC visibility pop
