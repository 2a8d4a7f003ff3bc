// Beam search finds likely outputs of a language model or of a decoder. In each step it extends several unfinished outputs, the hypotheses, by one token.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "polyhead/tensor_view.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

struct BeamSearchOptions {
  std::int64_t beams = 4;  // number of hypotheses of each sequence that a step extends
  std::optional<std::int64_t> end_token{};  // the token that ends a hypothesis; absent: every hypothesis has max_tokens tokens
  std::int64_t max_tokens = 0;              // maximum number of tokens of a hypothesis, its end token included; at least 1
  // The exponent in a hypothesis's score: the sum of its tokens' log-probabilities divided by (number of tokens)^length_penalty (Wu et al. 2016, section 7,
  // without its constant, as in the transformers package). A length_penalty above 0 favours longer hypotheses.
  double length_penalty = 1;
};

struct Hypothesis {
  std::vector<std::int64_t> tokens;  // the generated tokens, with the end token and without the start token
  double log_probability = 0;        // sum of the log-probabilities of the tokens
  double score = 0;                  // log_probability / tokens^length_penalty
  bool ended = false;                // true: the end token ended the hypothesis; false: the hypothesis reached max_tokens
};

// A function of the caller that computes one step of the model. Row r = sequence * beams + beam continues the text that row parents[r] had after the previous
// step, with the token tokens[r]. In the first step parents[r] is r, and tokens[r] is the start token of the row's sequence. The function returns logits
// [rows,C] of any floating dtype, which must stay unchanged until the next step. With a KeyValueCache of `rows` sequences: call cache.reorder(parents), then
// forward() with the tokens.
using DecodeStep = std::function<ConstTensorView(std::span<const std::int64_t> tokens, std::span<const std::int64_t> parents)>;

// Returns for each sequence its best hypotheses, at most `beams`, the best first; equally good hypotheses are in the order in which they were found. The search
// stops when no unfinished hypothesis can become better than those found. Rows that have no unfinished hypothesis are not read. Error for logits that
// greedy_tokens() refuses, and if the shape of the logits changes between steps.
std::vector<std::vector<Hypothesis>> beam_search(std::span<const std::int64_t> start_tokens, const DecodeStep& step, const BeamSearchOptions& options);

}  // namespace polyhead::nn
#pragma GCC visibility pop
