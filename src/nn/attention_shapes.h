// Shapes of an attention layer's tensors. Projected tensors keep the order of the input's dimensions; heads are views of them.
#pragma once

#include <optional>

#include "polyhead/nn/multi_head_attention.h"

namespace polyhead::nn {

struct AttentionShapes {
  int axis = 0;                 // counted from the front
  Shape lead;                   // *: every dimension but the axis and the width
  std::int64_t heads = 0;       // N
  std::int64_t queries = 0;     // T of sdpa: 1 with a global query
  std::int64_t positions = 0;   // extent of the query input along the axis, also with a global query
  std::int64_t keys = 0;        // S, without the added keys
  std::int64_t added_keys = 0;  // number of keys that add_bias_kv and add_zero_attn add
  Shape query, key;             // shapes of the inputs, without the width; with projected keys, `key` is the shape of the input that they replace
};

AttentionShapes attention_shapes(const char* operation, const MultiHeadAttentionConfig& config, const AttentionInput& input);

// Returns the shape of a projected tensor: `outer` with `extent` along the axis and `width` appended.
Shape with_extents(const Shape& outer, int axis, std::int64_t extent, std::int64_t width);

// Returns the shape of the layer's result: with a global query and no gate, it has one position.
Shape output_shape_of(const MultiHeadAttentionConfig& config, const AttentionShapes& shapes);

// Returns whether the mask may block any pair.
bool restricts(const Mask& mask);

// Returns options whose attend_keys and block_keys are [*,S]: `given` itself, or a copy stored in `own`. Error if mask_like_input is absent and both
// layouts fit.
const AttentionOptions& with_keys_last(const char* operation, const AttentionShapes& shapes, const AttentionOptions& given,
                                       std::optional<AttentionOptions>& own);

// Splits the width into n heads, as a view without a copy: [.., L, .., n*w] -> [*, n, L, w].
template <class Void>
BasicTensorView<Void> split_heads(const BasicTensorView<Void>& merged, int axis, std::int64_t heads) {
  return merged.unflatten(-1, {heads, merged.extent(-1) / heads}).move_axis(axis, -2);
}

// Moves the axis next to the width: [.., L, .., E] -> [*,L,E].
template <class View>
View positions_last(const View& x, int axis) {
  return x.move_axis(axis, -2);
}

// Error unless `pairs` is absent, or is [T,S] or has the rank of [*,N,T,S] and broadcasts to it, where S includes `added_keys`.
void require_pairs(const char* operation, std::string_view name, ConstTensorView pairs, const AttentionShapes& shapes,
                   std::int64_t added_keys = 0);

// Extend mask and bias to the added keys. Every query may attend to the added keys; their bias is 0.
Tensor padded_mask(const char* operation, const Mask& mask, const AttentionShapes& shapes);
Tensor padded_bias(ConstTensorView bias, const AttentionShapes& shapes);

}  // namespace polyhead::nn
