// An attention layer with the bias of a pair tensor, as in models of proteins (AttentionPairBias). polyhead/nn/pair_bias.h has the formula, defines the letters
// and says how much memory the layer uses.
#pragma once

#include <optional>

#include "polyhead/nn/pair_bias.h"
#include "polyhead/nn/seed.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

struct PairBiasAttentionConfig {
  std::int64_t width = 0;       // E, the width of the query input and of the output
  std::int64_t key_width = 0;   // Ek; 0: width
  std::int64_t pair_width = 0;  // C
  std::int64_t heads = 1;       // N
  std::int64_t head_width = 0;  // H; 0: width / heads, which must be a whole number
  bool gate = true;
  bool pair_projection_bias = false;
  double epsilon = 1e-5;          // epsilon of the norm of z
  std::optional<double> scale{};  // the factor of the scores; absent: 1/sqrt(H)
  EmptyRows empty_rows = EmptyRows::zero;
  DType dtype = DType::f32;
  Seed seed;  // the initial parameters are drawn with this seed
};

// Computes algorithm 24 of AlphaFold 3 without its first line: the caller normalises or conditions the query input. In a diffusion model the caller also gates
// the output. Initial projections are those of torch.nn.Linear. In a new layer only the projection q has a bias, as in the algorithm; in a loaded layer any
// projection may have one.
struct PairBiasAttention : Module<PairBiasAttention> {
  Linear q, k, v;  // weight [N*H,E] [N*H,Ek] [N*H,Ek]
  Linear gate;     // weight [N*H,E]; absent in a layer without a gate
  Linear output;   // weight [E,N*H]
  PairBias pair;
  std::optional<double> scale{};
  EmptyRows empty_rows = EmptyRows::zero;

  struct Input {
    ConstTensorView query;             // [*,T,E]
    ConstTensorView key = {};          // [*,S,Ek]; absent: `query` is used
    ConstTensorView z = {};            // [*,T,S,C]
    // the result of pair.forward(), to be given instead of z: [*,N,T,S]; a leading dimension along which it is shared may have the extent 1
    ConstTensorView pair_bias = {};
    ConstTensorView attend_keys = {};  // bool, broadcasts to [*,S]: true = queries may attend to the key
  };
  // What backward() needs from a forward pass. The caller keeps the memory of the inputs until backward() is done.
  struct Saved {
    Input input;
    Tensor q, k, v;   // [*,T,N*H] [*,S,N*H] [*,S,N*H]
    Tensor attended;  // [*,T,N*H]: the merged heads before the gate
    Tensor lse;       // [*,N,T]
    Tensor gate;      // [*,T,N*H]: the gate after the sigmoid; absent in a layer without a gate
    bool constant_parameters = false;  // true: forward() used a workspace with Parameters::constant
  };
  // Where backward() writes the gradients; absent gradients are not computed. If the input has no `key`, the gradient of the key input is added to that of the
  // query.
  struct Gradients {
    TensorView query = {}, key = {}, z = {};
    TensorView pair_bias = {};                 // the gradient of the input's pair_bias, in its shape
    PairBiasAttention* parameters = nullptr;   // If the input has a pair_bias, the gradients of `pair` are 0; pair.backward(z, d_pair_bias) computes them.
    Write parameters_write = Write::replace;   // whether the gradients of the parameters replace what `parameters` holds, or are added to it
  };

  PairBiasAttention() = default;
  explicit PairBiasAttention(const PairBiasAttentionConfig& config);

  std::int64_t heads() const { return pair.heads(); }
  std::int64_t head_width() const { return q.out_width() / pair.heads(); }

  // out is [*,T,E]; it may not overlap an input. Error unless exactly one of z and pair_bias is given.
  void forward(const Input& input, TensorView out, const RunOptions& options = {}, Saved* saved = nullptr) const;
  // Everything is checked before anything is written.
  void backward(const Saved& saved, ConstTensorView d_out, const Gradients& gradients, const RunOptions& options = {}) const;

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("q", self.q...);
    f("k", self.k...);
    f("v", self.v...);
    f("gate", self.gate...);
    f("output", self.output...);
    f("pair", self.pair...);
    f("scale", self.scale...);
    f("empty_rows", self.empty_rows...);
  }
};

}  // namespace polyhead::nn
#pragma GCC visibility pop
