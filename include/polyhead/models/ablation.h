// Measures what a model's embedding of a text loses when an attention head is switched off: the head's output becomes zero, and the rest of the model stays as
// it is (Michel et al. 2019).
#pragma once

#include "polyhead/models/sentence_model.h"

#pragma GCC visibility push(default)
namespace polyhead::models {

// Returns how much the text's embedding changes without the head: 1 - the cosine of the embedding in `with`, which run() returned, and the embedding without
// the head. During the call the head's columns of the output projection are zero, so no other thread may use the model. Error if there is no such head.
double change_without_head(SentenceModel& model, const SentenceResult& with, std::int64_t layer, std::int64_t head, const SentenceOptions& options = {});

}  // namespace polyhead::models
#pragma GCC visibility pop
