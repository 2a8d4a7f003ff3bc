// A layer of attention with the bias of a pair tensor: AttentionPairBias of models of proteins. polyhead/nn/pair_bias.h has the formula, defines the letters
// and says how much memory is used.
#pragma once

#include <optional>

#include "polyhead/nn/pair_bias.h"
#include "polyhead/nn/seed.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

struct PairBiasAttentionConfig {
  std::int64_t width = 0;       // E, of the query input and of the output
  std::int64_t key_width = 0;   // Ek; 0: width
  std::int64_t pair_width = 0;  // C
  std::int64_t heads = 1;       // N
  std::int64_t head_width = 0;  // H; 0: width / heads, which must be whole
  bool gate = true;
  bool pair_projection_bias = false;
  double epsilon = 1e-5;          // epsilon of the norm of z
  std::optional<double> scale{};  // absent: 1/sqrt(H)
  EmptyRows empty_rows = EmptyRows::zero;
  DType dtype = DType::f32;
  Seed seed;  // draws the initial parameters
};

// Computes algorithm 24 from its second line on. The caller norms or conditions the query input and, in a diffusion model, gates the output. Projections are
// initialised as torch.nn.Linear. In a new layer only the projection q has a bias, as in the algorithm; in a loaded layer any projection may have one.
struct PairBiasAttention : Module<PairBiasAttention> {
  Linear q, k, v;  // weight [N*H,E] [N*H,Ek] [N*H,Ek]
  Linear gate;     // weight [N*H,E]; absent without a gate
  Linear output;   // weight [E,N*H]
  PairBias pair;
  std::optional<double> scale{};
  EmptyRows empty_rows = EmptyRows::zero;

  struct Input {
    ConstTensorView query;             // [*,T,E]
    ConstTensorView key = {};          // [*,S,Ek]; if absent, `query` is used
    ConstTensorView z = {};            // [*,T,S,C]
    ConstTensorView pair_bias = {};    // instead of z: the result of pair.forward(), [*,N,T,S]; leading dimensions that share it may have extent 1
    ConstTensorView attend_keys = {};  // bool, broadcasts to [*,S]: true = may be attended to
  };
  // What backward needs from a forward pass. The caller keeps the memory of the inputs until backward is done.
  struct Saved {
    Input input;
    Tensor q, k, v;   // [*,T,N*H] [*,S,N*H] [*,S,N*H]
    Tensor attended;  // [*,T,N*H], merged heads before the gate
    Tensor lse;       // [*,N,T]
    Tensor gate;      // [*,T,N*H], after the sigmoid; absent without a gate
    bool constant_parameters = false;  // whether forward() used a workspace with Parameters::constant
  };
  // Absent gradients are not computed. If `key` of the input is absent, its gradient is added to that of the query.
  struct Gradients {
    TensorView query = {}, key = {}, z = {};
    TensorView pair_bias = {};                 // exactly the shape of the input's pair_bias
    PairBiasAttention* parameters = nullptr;   // if the input has pair_bias, the gradients of `pair` are 0: pair.backward(z, d_pair_bias) computes them
    Write parameters_write = Write::replace;   // replace or add, as in nn::Gradients
  };

  PairBiasAttention() = default;
  explicit PairBiasAttention(const PairBiasAttentionConfig& config);

  std::int64_t heads() const { return pair.heads(); }
  std::int64_t head_width() const { return q.out_width() / pair.heads(); }

  // out [*,T,E]; may not overlap an input. Error unless exactly one of z and pair_bias is given.
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
