// Chooses the next token from a language model's logits: the likeliest one, or one drawn at random.
#pragma once

#include <cstdint>
#include <optional>

#include "polyhead/tensor_view.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

struct SamplingOptions {
  double temperature = 1;  // above 0; logits are divided by the temperature
  std::int64_t top_k = 0;  // only the k likeliest tokens may be drawn; 0: all tokens
  // In (0,1]: only the likeliest tokens may be drawn, as few as together have at least the share top_p of the probability that top_k leaves (Holtzman et al.
  // 2020).
  double top_p = 1;
  // Both are required. A draw depends only on the seed, the position and the row; without positions, a loop would draw the same number for each token.
  std::optional<std::uint64_t> seed{};
  std::optional<std::uint64_t> position{};  // position of the drawn token in its text
};

// Writes the likeliest token of each row: tokens [B], int64, from logits [B,C] of any floating dtype and strides, C >= 1. Of equally likely tokens the one with
// the smallest number is chosen. A logit of -infinity means probability 0. Error for NaN, for +infinity, and if all logits of a row are -infinity.
void greedy_tokens(ConstTensorView logits, TensorView tokens);
// Draws a token for each row with the probabilities softmax(logits / temperature), renormalised over the tokens that top_k and then top_p leave. Throws the
// Errors of greedy_tokens().
void sample_tokens(ConstTensorView logits, TensorView tokens, const SamplingOptions& options);

}  // namespace polyhead::nn
#pragma GCC visibility pop
