// Beam search: the likeliest outputs of a language model or of a decoder.
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
  std::int64_t beams = 4;  // number of hypotheses per sequence that each step extends
  std::optional<std::int64_t> end_token{};  // token that ends a hypothesis; absent: every hypothesis has max_tokens tokens
  std::int64_t max_tokens = 0;              // length limit of a hypothesis, its end token included; at least 1
  // Hypotheses are compared by the sum of their tokens' log-probabilities divided by tokens^length_penalty (Wu et al. 2016, section 7, without its constant, as
  // in the transformers package). A length_penalty above 0 favours longer hypotheses.
  double length_penalty = 1;
};

struct Hypothesis {
  std::vector<std::int64_t> tokens;  // the generated tokens, without the start token; the end token is included
  double log_probability = 0;        // sum of the tokens' log-probabilities
  double score = 0;                  // log_probability / tokens^length_penalty
  bool ended = false;                // true: by the end token; false: max_tokens was reached
};

// Computes one step of the model. Row r = sequence * beams + beam continues the text of row parents[r] of the previous step with the token tokens[r]. Returns
// logits [rows,C] of any floating dtype, which must stay unchanged until the next step. With a KeyValueCache of `rows` sequences: call cache.reorder(parents),
// then forward() of the tokens. In the first step parents[r] is r, and tokens[r] is the start token of the row's sequence.
using DecodeStep = std::function<ConstTensorView(std::span<const std::int64_t> tokens, std::span<const std::int64_t> parents)>;

// Returns the best hypotheses of each sequence, at most `beams`, the best first; equally good ones are in the order in which they were found. The search stops
// when no open hypothesis can become better than those found. The logits of rows that have no open hypothesis are not read. Error for logits that
// greedy_tokens() refuses, and if the shape of the logits changes between steps.
std::vector<std::vector<Hypothesis>> beam_search(std::span<const std::int64_t> start_tokens, const DecodeStep& step, const BeamSearchOptions& options);

}  // namespace polyhead::nn
#pragma GCC visibility pop
