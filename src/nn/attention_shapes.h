// The shapes of an attention layer's tensors. Projected tensors keep the order of the input's dimensions; split_heads() views them as heads.
#pragma once

#include <optional>

#include "polyhead/nn/multi_head_attention.h"

namespace polyhead::nn {

struct AttentionShapes {
  int axis = 0;                 // the axis of attention, counted from the front
  Shape lead;                   // the leading dimensions (*): all except the axis of attention and the width
  std::int64_t heads = 0;       // N
  std::int64_t queries = 0;     // T of sdpa; 1 with a global query
  std::int64_t positions = 0;   // extent of the query input along the axis of attention, also with a global query
  std::int64_t keys = 0;        // S without the keys that the layer adds
  std::int64_t added_keys = 0;  // number of keys that add_bias_kv and add_zero_attn add
  Shape query, key;             // The shapes of the inputs without their width. With projected keys, `key` is the shape that the key input would have.
};

AttentionShapes attention_shapes(const char* operation, const MultiHeadAttentionConfig& config, const AttentionInput& input);

// Returns the shape of a projected tensor: `outer`, with the given extent along the axis, and with `width` appended.
Shape with_extents(const Shape& outer, int axis, std::int64_t extent, std::int64_t width);

// Returns the shape of the layer's output. With a global query and no gate, the output has one position.
Shape output_shape_of(const MultiHeadAttentionConfig& config, const AttentionShapes& shapes);

// Returns whether the mask may mask any pair of a query and a key.
bool restricts(const Mask& mask);

// Returns options whose attend_keys and block_keys have the shape [*,S]: `given` itself, or a copy that is stored in `own`. Error if mask_like_input is absent
// and a mask fits both shapes.
const AttentionOptions& with_keys_last(const char* operation, const AttentionShapes& shapes, const AttentionOptions& given,
                                       std::optional<AttentionOptions>& own);

// Views the width as n heads: [.., L, .., n*w] -> [*, n, L, w].
template <class Void>
BasicTensorView<Void> split_heads(const BasicTensorView<Void>& merged, int axis, std::int64_t heads) {
  return merged.unflatten(-1, {heads, merged.extent(-1) / heads}).move_axis(axis, -2);
}

// Moves the axis of attention next to the width: [.., L, .., E] -> [*,L,E].
template <class View>
View positions_last(const View& x, int axis) {
  return x.move_axis(axis, -2);
}

// Error unless the tensor `pairs` (a mask, a bias or keep bits) is absent, is [T,S], or has all dimensions of [*,N,T,S] and broadcasts to it. S includes
// `added_keys`.
void require_pairs(const char* operation, std::string_view name, ConstTensorView pairs, const AttentionShapes& shapes,
                   std::int64_t added_keys = 0);

// padded_mask() and padded_bias() extend mask and bias to the keys that the layer adds. Every query may attend to these keys; their bias is 0.
Tensor padded_mask(const char* operation, const Mask& mask, const AttentionShapes& shapes);
Tensor padded_bias(ConstTensorView bias, const AttentionShapes& shapes);

}  // namespace polyhead::nn
