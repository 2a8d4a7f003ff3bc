// What the forward and the backward pass of an attention layer both use.
#pragma once

#include <string_view>
#include <vector>

#include "core/overlap.h"
#include "nn/attention_shapes.h"
#include "polyhead/attention_arguments.h"

namespace polyhead::nn {

// Returns all tensors, except the parameters, that forward and backward pass read. `options` are AttentionOptions or SdpaOptions.
template <class Options>
std::vector<Operand> inputs_of(const AttentionInput& input, const Options& options, const ConstTensorView& dropout_keep, const Rotary& rotary) {
  std::vector<Operand> inputs;
  inputs.reserve(23);
  const auto add = [&](std::string_view name, const ConstTensorView& view) {
    if (view) inputs.push_back({name, view});
  };
  const auto& [query, key, value, projected_key, projected_value, projected_key_scale, projected_value_scale] = input;
  add("query", query), add("key", key), add("value", value), add("projected_key", projected_key), add("projected_value", projected_value);
  add("projected_key_scale", projected_key_scale), add("projected_value_scale", projected_value_scale), add("dropout_keep", dropout_keep);
  const auto& [named, cos, sin, key_cos, key_sin, order, width] = rotary;
  add("rotary.cos", cos), add("rotary.sin", sin), add("rotary.key_cos", key_cos), add("rotary.key_sin", key_sin);
  visit_shared_arguments(options, TensorArguments{[&](const Argument& argument, const ConstTensorView& view) { add(argument.path(), view); }});
  return inputs;
}

// Rotates q and k in place, or rotates their gradients back. Added keys are not rotated. q or k may be absent.
inline void apply_rotary(const Rotary& rotary, Rotation rotation, const AttentionShapes& shapes, TensorView q_heads, TensorView k_heads, Executor* executor) {
  if (!rotary.cos) return;
  if (q_heads) rotate(rotary.cos, rotary.sin, rotary.order, rotation, q_heads, executor);
  if (!k_heads) return;
  const bool has_key_tables = static_cast<bool>(rotary.key_cos);
  rotate(has_key_tables ? rotary.key_cos : rotary.cos, has_key_tables ? rotary.key_sin : rotary.sin, rotary.order, rotation, k_heads.slice(-2, 0, shapes.keys),
         executor);
}

}  // namespace polyhead::nn
