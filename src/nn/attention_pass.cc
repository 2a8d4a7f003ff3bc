#include "nn/attention_pass.h"

namespace polyhead::nn {

Shape output_shape_of(const MultiHeadAttentionConfig& c, const AttentionShapes& shapes) {
  return with_extents(shapes.query, shapes.axis, c.gate == Gate::sigmoid ? shapes.positions : shapes.queries, c.output_width);
}

void apply_rotary(const Rotary& rotary, Rotation rotation, const AttentionShapes& shapes, TensorView q_heads, TensorView k_heads,
                  Executor* executor) {
  if (!rotary.cos) return;
  if (q_heads) rotate(rotary.cos, rotary.sin, rotary.order, rotation, q_heads, executor);
  if (!k_heads) return;
  const bool own = static_cast<bool>(rotary.key_cos);
  rotate(own ? rotary.key_cos : rotary.cos, own ? rotary.key_sin : rotary.sin, rotary.order, rotation, k_heads.slice(-2, 0, shapes.keys),
         executor);
}

}  // namespace polyhead::nn
