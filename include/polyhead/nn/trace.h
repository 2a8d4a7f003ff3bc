// Shows a layer's forward pass step by step to a reader: the steps in their order, their shapes, and their numbers.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "polyhead/nn/multi_head_attention.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

// The steps in their order. A trace has only those that the layer's configuration, inputs and options need.
enum class TraceKind : std::uint8_t {
  query, key, value, mean_query,
  projection_q, projection_k, projection_v, norm_q, norm_k, rotary_q, rotary_k, added_key, added_value,
  split_q, split_k, split_v,
  scores, scale, softcap, bias, mask, softmax, dropout,
  weighted_values, merge, gate, gated, output_projection,
};

struct MaskCounts {
  std::int64_t pairs = 0, attended = 0;  // number of (query, key) pairs, and of those that the mask allows; a mask that heads share is counted once
  std::int64_t empty_rows = 0;           // rows whose keys are all masked
  bool shared_by_heads = false;
};

struct TraceStep {
  TraceKind kind;
  std::string letters;               // names of the value's extents: "[B,N,T,H]"
  Tensor value;
  std::optional<MaskCounts> mask{};  // absent except for TraceKind::mask

  const Shape& shape() const { return value.shape(); }
};

// The values are the saved activations of a forward pass and maps computed from them. The last value equals the output of forward() bit for
// bit. Holds up to seven [*,N,T,S] tensors: meant for small inputs.
std::vector<TraceStep> trace(const MultiHeadAttention& layer, const AttentionInput& input, const AttentionOptions& options = {});

}  // namespace polyhead::nn
#pragma GCC visibility pop
