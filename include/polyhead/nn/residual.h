// How encoder and decoder layers combine a part f (attention or the feed-forward network) with a residual connection and a norm:
//   post:  y = norm(x + dropout(f(x)))     (Vaswani et al. 2017, section 3.1)
//   pre:   y = x + dropout(f(norm(x)))     (Xiong et al. 2020, figure 1b); the stack ends with one more norm
//   both:  y = x + dropout(output_norm(f(norm(x))))     (Gemma 2, 2024); the stack ends with one more norm
#pragma once

#include <cstdint>

#include "polyhead/nn/norm.h"
#include "polyhead/tensor.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

enum class NormPosition : std::uint8_t { post, pre, both };

// sequential: the feed-forward network reads the result of the attention. parallel: both read x, as in GPT-J and GPT-NeoX; Error with NormPosition::post.
enum class PartOrder : std::uint8_t { sequential, parallel };

// What backward() needs from a forward pass of one part f.
struct SavedResidual {
  ConstTensorView x;  // the input; the caller keeps its memory until backward() is done
  Tensor normed;      // norm(x) with NormPosition::pre and both; x + dropout(f(x)) with post
  Tensor output;      // f(norm(x)), only with NormPosition::both
  NormPosition position = NormPosition::post;
  NormKind kind = NormKind::layer_norm;
  double dropout = 0;  // dropout probability of the forward pass; 0 in evaluation
  std::uint64_t seed = 0;
};

}  // namespace polyhead::nn
#pragma GCC visibility pop
