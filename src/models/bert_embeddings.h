// The position ids and scale factors of an encoder's embeddings.
#pragma once

#include "polyhead/models/bert.h"

namespace polyhead::models {

// Rows of the position table for ids [*,T]: [T], or [*,T] where positions are counted from the padding token. Error where there are not enough rows.
Tensor position_ids(const BertConfig& config, ConstTensorView ids);

// The factors [*,T] of the word embeddings with config.mask_token, float32 or float64. Error where a text has mask tokens alone.
Tensor word_scales(const BertConfig& config, const BertInput& input);

}  // namespace polyhead::models
