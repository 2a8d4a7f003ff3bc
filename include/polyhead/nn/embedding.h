#pragma once

#include "polyhead/nn/module.h"
#include "polyhead/nn/seed.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

struct EmbeddingConfig {
  std::int64_t count = 0;  // ids are 0 … count - 1
  std::int64_t width = 0;
  DType dtype = DType::f32;
  Seed seed;  // draws the initial parameters
};

struct EmbeddingOptions {
  Write write = Write::replace;  // add: sums several embeddings (words, positions, segments) in one tensor
  Executor* executor = nullptr;
};

// y[..., :] = weight[ids[...], :]. Initialised as torch.nn.Embedding: normal, mean 0, deviation 1.
struct Embedding : Module<Embedding> {
  Tensor weight;  // [count,width]

  Embedding() = default;
  explicit Embedding(const EmbeddingConfig& config);
  explicit Embedding(Tensor weight);  // takes a loaded tensor

  std::int64_t count() const { return weight.extent(0); }
  std::int64_t width() const { return weight.extent(1); }

  // ids [*] int64 or int32, y [*,width] of the weight's dtype. An id outside [0, count) is an Error that names it; y is then unchanged.
  void forward(ConstTensorView ids, TensorView y, const EmbeddingOptions& options = {}) const;
  // d_weight[i,:] = sum of d_y[..., :] over the positions whose id is i, in row-major order of the positions.
  struct Gradients {
    Embedding* parameters = nullptr;          // tensor that receives the gradient, for example zeros_like(embedding)
    Write parameters_write = Write::replace;  // replace or add, as in nn::Gradients; add: for several uses of the embedding
  };
  void backward(ConstTensorView ids, ConstTensorView d_y, const Gradients& gradients, const RunOptions& options = {}) const;

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("weight", self.weight...);
  }
};

}  // namespace polyhead::nn
#pragma GCC visibility pop
