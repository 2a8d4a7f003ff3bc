#include "nn/attention_pass.h"

#include "nn/elementwise.h"

namespace polyhead::nn {

void apply_rotary(const Rotary& rotary, Rotation rotation, const AttentionShapes& shapes, TensorView q_heads, TensorView k_heads,
                  Executor* executor) {
  if (!rotary.cos) return;
  if (q_heads) rotate(rotary.cos, rotary.sin, rotary.order, rotation, q_heads, executor);
  if (!k_heads) return;
  const bool has_key_tables = static_cast<bool>(rotary.key_cos);
  rotate(has_key_tables ? rotary.key_cos : rotary.cos, has_key_tables ? rotary.key_sin : rotary.sin, rotary.order, rotation, k_heads.slice(-2, 0, shapes.keys),
         executor);
}

}  // namespace polyhead::nn
