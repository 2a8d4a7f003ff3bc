// Computes the position ids and scale factors of an encoder's embeddings.
#pragma once

#include "polyhead/models/bert.h"

namespace polyhead::models {

// Returns the rows of the position table for ids [*,T]: [T], or [*,T] if config.padding_token is set. Error if the table has too few rows.
Tensor position_ids(const BertConfig& config, ConstTensorView ids);

// Returns the factors [*,T] of the word embeddings with config.mask_token, float32 or float64. Error if a text has only mask tokens.
Tensor word_scales(const BertConfig& config, const BertInput& input);

}  // namespace polyhead::models
