#pragma once

#include "polyhead/nn/module.h"
#include "polyhead/nn/seed.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

struct EmbeddingConfig {
  std::int64_t count = 0;  // ids are 0 … count - 1
  std::int64_t width = 0;
  DType dtype = DType::f32;
  Seed seed;  // the initial parameters are drawn with this seed
};

struct EmbeddingOptions {
  Write write = Write::replace;  // add: y += embedding, for example to sum the embeddings of words, positions and segments in one tensor
  Executor* executor = nullptr;
};

// A table of learned vectors: y[..., :] = weight[ids[...], :]. Initial elements are normally distributed with mean 0 and deviation 1, as in torch.nn.Embedding.
struct Embedding : Module<Embedding> {
  Tensor weight;  // [count,width]

  Embedding() = default;
  explicit Embedding(const EmbeddingConfig& config);
  explicit Embedding(Tensor weight);  // uses a loaded tensor

  std::int64_t count() const { return weight.extent(0); }
  std::int64_t width() const { return weight.extent(1); }

  // ids is [*] int64 or int32, y is [*,width] of the weight's dtype. An id outside of [0, count) is an Error that names the id; y is then unchanged.
  void forward(ConstTensorView ids, TensorView y, const EmbeddingOptions& options = {}) const;
  // The gradient of the weight: d_weight[i,:] = sum of d_y[..., :] over the positions whose id is i, in row-major order of the positions.
  struct Gradients {
    Embedding* parameters = nullptr;          // the tensor that receives the gradient, for example zeros_like(embedding)
    Write parameters_write = Write::replace;  // add: adds up the gradients of several uses of one embedding in a model (see nn::Gradients)
  };
  void backward(ConstTensorView ids, ConstTensorView d_y, const Gradients& gradients, const RunOptions& options = {}) const;

  template <class F, class... Self>
  static void visit_members(const F& f, Self&... self) {
    f("weight", self.weight...);
  }
};

}  // namespace polyhead::nn
#pragma GCC visibility pop
