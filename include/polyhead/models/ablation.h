// Measures the effect of switching an attention head off: the head's output becomes zero, and everything else stays as it is (Michel et al. 2019).
#pragma once

#include "polyhead/models/sentence_model.h"

#pragma GCC visibility push(default)
namespace polyhead::models {

// Returns how much the text's embedding changes without the head: 1 - cosine of two embeddings, the one in `with`, which run() returned, and the one without
// the head. During the call the head's columns of the output projection are set to zero, so no other thread may use the model. Error if there is no such head.
double change_without_head(SentenceModel& model, const SentenceResult& with, std::int64_t layer, std::int64_t head, const SentenceOptions& options = {});

}  // namespace polyhead::models
#pragma GCC visibility pop
