#pragma once

#include <cstdint>
#include <optional>

#include "polyhead/tensor_view.h"

namespace polyhead::nn {

// Returns the seed. Error if it is absent.
std::uint64_t required_seed(const char* operation, std::optional<std::uint64_t> seed);

}  // namespace polyhead::nn

#pragma GCC visibility push(default)  // This class is exported, because libraries of other components use it.
namespace polyhead::nn::inline internal {

// Draws parameters from one seed. Each call draws from a new stream of random numbers. An element's value depends on the seed, on the number of calls before,
// and on the element's row-major index. It does not depend on strides, and depends on the dtype only by rounding.
class Initialiser {
 public:
  explicit Initialiser(std::uint64_t seed) : seed_(seed) {}

  void uniform(TensorView parameter, double low, double high);
  void normal(TensorView parameter, double mean, double deviation);
  // Draws a weight [out,in] uniformly from +-sqrt(6 / (in + out)) (Glorot and Bengio 2010, eq. 16). torch.nn.MultiheadAttention draws its input projections in
  // this way, packed projections as one weight [3E,E], and sets the biases to zero.
  void xavier_uniform(TensorView weight);
  // Draws a weight [out,in] and a bias [out], which may be absent, uniformly from +-1/sqrt(in), as torch.nn.Linear does.
  void linear(TensorView weight, TensorView bias);

  std::uint64_t child_seed();  // Returns the seed for the next child module.

 private:
  std::uint64_t seed_;
  std::uint32_t stream_ = 0;
};

}  // namespace polyhead::nn::inline internal
#pragma GCC visibility pop
