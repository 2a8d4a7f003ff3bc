// Chooses the next token from a language model's logits: the likeliest one, or one drawn at random.
#pragma once

#include <cstdint>
#include <optional>

#include "polyhead/tensor_view.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

struct SamplingOptions {
  double temperature = 1;  // above 0; logits are divided by it
  std::int64_t top_k = 0;  // draw among the k likeliest tokens only; 0: among all
  double top_p = 1;        // in (0,1]: draw among the fewest likeliest tokens that hold at least the share top_p of the probability that top_k leaves (Holtzman et al. 2020)
  // Seed and position are required: a draw depends on the seed, the position and the row only, and a loop without positions would draw the same number
  // for each token.
  std::optional<std::uint64_t> seed{};
  std::optional<std::uint64_t> position{};  // position of the token in its text
};

// Writes tokens [B], int64, from logits [B,C] of any floating dtype and strides, C >= 1. Of equally likely tokens the one with the smallest number is chosen. A
// logit of -infinity means probability 0. Error for NaN, for +infinity, and if all logits of a row are -infinity.
void greedy_tokens(ConstTensorView logits, TensorView tokens);
// Draws each token with the probabilities softmax(logits / temperature), renormalised over the tokens that top_k and then top_p leave. Throws the Errors that
// greedy_tokens() throws.
void sample_tokens(ConstTensorView logits, TensorView tokens, const SamplingOptions& options);

}  // namespace polyhead::nn
#pragma GCC visibility pop
