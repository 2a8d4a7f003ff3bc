// q, k and v of a text: whether they belong to its attention weights, and how the page's data hold them.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "polyhead/viewer.h"

namespace polyhead::viewer {

// Error if a shape does not fit attentions [layers,heads,T,S].
void check_shapes(const HeadVectors& vectors, const ConstTensorView& attentions);
// Error if an attention weight is another one than the vectors give.
void check_weights(const HeadVectors& vectors, const ConstTensorView& attentions);

std::int64_t count_numbers(const HeadVectors& vectors, const ConstTensorView& attentions);  // as float32, in the page

// {scale, q, k, v, bias, attend}: of each tensor a list of layers of heads, float32 in base64 (attend: a byte for each pair). A list has one
// entry where all layers or heads share it.
nlohmann::json to_json(const HeadVectors& vectors, const ConstTensorView& attentions);

double megabytes(std::int64_t numbers);  // of so many float32 numbers in the page

}  // namespace polyhead::viewer
