// Switching a head off: its output is zero, and everything else stays as it is (Michel et al. 2019).
#pragma once

#include "polyhead/models/sentence_model.h"

#pragma GCC visibility push(default)
namespace polyhead::models {

// How much the text's embedding changes without that head: 1 - the cosine of the embedding of `with`, as run() returned it, and of the embedding without. During
// the call the head's columns of the output projection are zero; nobody else may use the model then. Error if there is no such head.
double change_without_head(SentenceModel& model, const SentenceResult& with, std::int64_t layer, std::int64_t head, const SentenceOptions& options = {});

}  // namespace polyhead::models
#pragma GCC visibility pop
