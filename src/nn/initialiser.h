#pragma once

#include <cstdint>
#include <optional>

#include "polyhead/tensor_view.h"

namespace polyhead::nn {

// Returns the seed. Error without one.
std::uint64_t required_seed(const char* operation, std::optional<std::uint64_t> seed);

}  // namespace polyhead::nn

#pragma GCC visibility push(default)  // exported: the libraries of other components call these
namespace polyhead::nn::inline internal {

// Fills parameters from one seed. Each call draws from a new stream, so a parameter's values depend on the seed, on the number of
// calls before it and on the element's row-major number: not on strides, and on the dtype only by rounding.
class Initialiser {
 public:
  explicit Initialiser(std::uint64_t seed) : seed_(seed) {}

  void uniform(TensorView parameter, double low, double high);
  void normal(TensorView parameter, double mean, double deviation);
  // Glorot and Bengio 2010, eq. 16, for a weight [out,in]: uniform in +-sqrt(6 / (in + out)). torch.nn.MultiheadAttention draws its input
  // projections this way (packed projections as one weight [3E,E]) and sets the biases to zero.
  void xavier_uniform(TensorView weight);
  // torch.nn.Linear: weight [out,in] and bias [out] (absent: none) uniform in +-1/sqrt(in).
  void linear(TensorView weight, TensorView bias);

  std::uint64_t child_seed();  // the next seed for a child module

 private:
  std::uint64_t seed_;
  std::uint32_t stream_ = 0;
};

}  // namespace polyhead::nn::inline internal
#pragma GCC visibility pop
