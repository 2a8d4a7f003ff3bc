// Beam search: the likeliest answers of a language model or of a decoder.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "polyhead/tensor_view.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

struct BeamSearchOptions {
  std::int64_t beams = 4;        // answers that are followed at once, of each sequence
  std::int64_t end_token = -1;   // an answer ends with it; -1: there is none, and answers have most_tokens tokens
  std::int64_t most_tokens = 0;  // of an answer, its end token included; at least 1
  // Answers are compared by the sum of their tokens' log-probabilities divided by tokens^length_penalty (Wu et al. 2016, section 7, without
  // its constant, as transformers has it). Above 0: longer answers gain.
  double length_penalty = 1;
};

struct Answer {
  std::vector<std::int64_t> tokens;  // with the end token, if it ended
  double log_probability = 0;        // of all tokens
  double score = 0;                  // log_probability / tokens^length_penalty
  bool ended = false;                // by the end token; else by most_tokens
};

// One step of the model: row r = sequence * beams + beam continues row parents[r] of the step before, and tokens[r] is its newest token.
// Gives logits [rows,C] of any floating dtype, which must stay as they are until the next step. With a KeyValueCache of `rows` sequences:
// cache.reorder(parents), then forward of the tokens. In the first step parents[r] is r, and tokens[r] the sequence's start token.
using DecodeStep = std::function<ConstTensorView(std::span<const std::int64_t> tokens, std::span<const std::int64_t> parents)>;

// The best answers of each sequence, at most `beams`, the best first; those that are equally good in the order in which they were found.
// Stops where no open answer can become better than the answers found. Error for logits that greedy_tokens() refuses, and for a shape that changes.
std::vector<std::vector<Answer>> beam_search(std::span<const std::int64_t> start_tokens, const DecodeStep& step, const BeamSearchOptions& options);

}  // namespace polyhead::nn
#pragma GCC visibility pop
