// q, k and v of a text: checks that they belong to its attention weights, and writes them into the page's data.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "polyhead/viewer.h"

namespace polyhead::viewer {

// Error if a shape does not fit attentions [layers,heads,T,S].
void check_shapes(const HeadVectors& vectors, const ConstTensorView& attentions);
// Throws an Error if an attention weight of the map differs from the weight that is computed from the vectors.
void check_weights(const HeadVectors& vectors, const ConstTensorView& attentions);

std::int64_t count_numbers(const HeadVectors& vectors, const ConstTensorView& attentions);  // returns how many float32 numbers the page stores for these vectors

// The vectors as JSON {scale, q, k, v, bias, attend, rotary: {cos, sin, neighbours}}. Each tensor is a list of layers. A layer is a list of heads. A head is
// float32 in base64; in `attend`, true is 1 and false is 0. A list has only one entry if all layers, or all heads, share it.
nlohmann::json to_json(const HeadVectors& vectors, const ConstTensorView& attentions);

// Error if norms [layers,heads,S] do not fit attentions [layers,heads,T,S], or if one is negative.
void check_norms(const ConstTensorView& norms, const ConstTensorView& attentions);
nlohmann::json norms_json(const ConstTensorView& norms);  // a list of layers, each a list of heads; a head is float32 in base64

double megabytes(std::int64_t numbers);  // returns the size in the page, in MB, of this many float32 numbers

}  // namespace polyhead::viewer
