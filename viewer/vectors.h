// q, k and v of a text: checks that they belong to its attention weights, and writes them into the page's data.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "polyhead/viewer.h"

namespace polyhead::viewer {

// Error if a shape does not fit attentions [layers,heads,T,S].
void check_shapes(const HeadVectors& vectors, const ConstTensorView& attentions);
// Error if an attention weight differs from the one computed from the vectors.
void check_weights(const HeadVectors& vectors, const ConstTensorView& attentions);

std::int64_t count_numbers(const HeadVectors& vectors, const ConstTensorView& attentions);  // how many float32 numbers the page holds for them

// {scale, q, k, v, bias, attend}: each tensor is a list of layers, each a list of heads, as float32 in base64 (attend: a byte for each pair). A list
// has one entry if all layers or heads share it.
nlohmann::json to_json(const HeadVectors& vectors, const ConstTensorView& attentions);

double megabytes(std::int64_t numbers);  // size of this many float32 numbers in the page

}  // namespace polyhead::viewer
