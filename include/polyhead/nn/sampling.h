// The next token from a language model's logits: the likeliest one, or one that is drawn.
#pragma once

#include <cstdint>
#include <optional>

#include "polyhead/tensor_view.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

struct SamplingOptions {
  double temperature = 1;  // above 0; logits are divided by it
  std::int64_t top_k = 0;  // only the k likeliest tokens; 0: all
  double top_p = 1;        // in (0,1]: of these, the fewest likeliest ones whose probabilities sum to at least p (Holtzman et al. 2020)
  // Both are required: a draw depends on the seed, the position and the row only, and a loop without positions would draw the same number
  // for each token.
  std::optional<std::uint64_t> seed{};
  std::optional<std::uint64_t> position{};  // of the token in its text
};

// tokens [B], int64, from logits [B,C] of any floating dtype and strides, C from 1. Equally likely tokens are ordered by their number, the
// smaller first. Error for NaN, for infinity, and where all logits of a row are -infinity, which is a token of probability 0.
void greedy_tokens(ConstTensorView logits, TensorView tokens);
// The same, drawn with the probabilities softmax(logits / temperature) of the tokens that top_k and then top_p leave, which sum to 1 again.
void sample_tokens(ConstTensorView logits, TensorView tokens, const SamplingOptions& options);

}  // namespace polyhead::nn
#pragma GCC visibility pop
