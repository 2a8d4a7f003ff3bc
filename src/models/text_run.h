// Converts the result of an encoder to TextRun, the result type of all models of text.
#pragma once

#include <utility>

#include "polyhead/models/any_text_model.h"

namespace polyhead::models {

inline TextRun text_run_of(SentenceResult result) {
  return {.tokens = std::move(result.tokens),
          .ids = std::move(result.ids),
          .attentions = std::move(result.attentions),
          .pooled = std::move(result.pooled),
          .hidden = std::move(result.hidden),
          .embedding = std::move(result.embedding),
          .q = std::move(result.q),
          .k = std::move(result.k),
          .v = std::move(result.v),
          .bias = std::move(result.bias),
          .attend = std::move(result.attend),
          .rotations = std::move(result.rotations),
          .value_norms = std::move(result.value_norms)};
}

}  // namespace polyhead::models
