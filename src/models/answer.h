// The loop of generate(): it computes the logits of the next token, chooses a token, and stops at an end token.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "polyhead/models/sequence_to_sequence_model.h"

namespace polyhead::models {

struct Answering {
  const char* operation;
  std::int64_t vocabulary;
  DType logits_dtype;
  const AnswerRules& rules;  // its start_token is not used here
  const GenerateOptions& options;
};

// Throws an Error if the prompt is empty, if options contradict each other, or if prompt and answer need more than `positions` positions (0: any number).
void require_answer(const Answering& call, std::size_t prompt, std::int64_t positions);
// Returns the tokens after the prompt. next(text, logits) writes the logits [1,C] of the token that follows the text, which begins with the prompt.
std::vector<std::int64_t> answer(const Answering& call, std::span<const std::int64_t> prompt, const std::function<void(std::span<const std::int64_t> text, TensorView logits)>& next);

}  // namespace polyhead::models
