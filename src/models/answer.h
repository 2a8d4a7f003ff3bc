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
  const AnswerRules& rules;  // start_token is not read
  const GenerateOptions& options;
};

// Error for an empty prompt, for options that do not fit each other, and where prompt and answer need more positions than `positions` (0: any number).
void require_answer(const Answering& call, std::size_t prompt, std::int64_t positions);
// Returns the tokens after the prompt. next(text, logits) writes the logits [1,C] of the token that follows the text, which begins with the prompt.
std::vector<std::int64_t> answer(const Answering& call, std::span<const std::int64_t> prompt, const std::function<void(std::span<const std::int64_t> text, TensorView logits)>& next);

}  // namespace polyhead::models
