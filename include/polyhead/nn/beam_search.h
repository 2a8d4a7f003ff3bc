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
  std::int64_t beams = 4;  // hypotheses per sequence that are followed at once
  std::optional<std::int64_t> end_token{};  // ends a hypothesis; absent: all have max_tokens tokens
  std::int64_t max_tokens = 0;              // length limit of a hypothesis, its end token included; at least 1
  // Hypotheses are compared by the sum of their tokens' log-probabilities divided by tokens^length_penalty (Wu et al. 2016, section 7, without
  // its constant, as in the transformers package). Above 0: longer hypotheses gain.
  double length_penalty = 1;
};

struct Hypothesis {
  std::vector<std::int64_t> tokens;  // with the end token, if it ended
  double log_probability = 0;        // sum over all tokens
  double score = 0;                  // log_probability / tokens^length_penalty
  bool ended = false;                // true: by the end token; false: by max_tokens
};

// One step of the model: row r = sequence * beams + beam continues row parents[r] of the step before, and tokens[r] is its newest token.
// Returns logits [rows,C] of any floating dtype, which must stay as they are until the next step. With a KeyValueCache of `rows` sequences:
// cache.reorder(parents), then forward of the tokens. In the first step parents[r] is r, and tokens[r] the sequence's start token.
using DecodeStep = std::function<ConstTensorView(std::span<const std::int64_t> tokens, std::span<const std::int64_t> parents)>;

// Returns the best hypotheses of each sequence, at most `beams`, the best first; equally good ones are in the order in which they were found. The
// search stops when no open hypothesis can become better than those found. Rows of logits without an open hypothesis are not read. Error for logits
// that greedy_tokens() refuses, and if their shape changes between steps.
std::vector<std::vector<Hypothesis>> beam_search(std::span<const std::int64_t> start_tokens, const DecodeStep& step, const BeamSearchOptions& options);

}  // namespace polyhead::nn
#pragma GCC visibility pop
