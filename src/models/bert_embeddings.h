// What an encoder adds and scales in its embeddings, forward and backward.
#pragma once

#include "polyhead/models/bert.h"

namespace polyhead::models {

// Rows of the position table for ids [*,T]: [T], or [*,T] where positions are counted from the padding token. Error where there are not enough rows.
Tensor position_ids(const BertConfig& config, ConstTensorView ids);

// The factors [*,T] of the word embeddings with config.mask_token, float32 or float64. Error where a text has mask tokens alone.
Tensor word_scales(const BertConfig& config, const BertInput& input);

// x[..., e] *= factors[...]; where a factor is 0, x becomes 0 even if it is not finite. factors [*] float32, float64 or bool.
void scale_rows(TensorView x, ConstTensorView factors, Executor* executor);

}  // namespace polyhead::models
