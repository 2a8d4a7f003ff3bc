// Shows a reader each step of an attention layer's forward pass, with its shape and its numbers.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "polyhead/nn/multi_head_attention.h"

#pragma GCC visibility push(default)
namespace polyhead::nn {

// The steps of an attention layer, in their order. A trace only has the steps that the layer's configuration, inputs and options need.
enum class TraceKind : std::uint8_t {
  query, key, value, mean_query,
  projection_q, projection_k, projection_v, norm_q, norm_k, rotary_q, rotary_k, added_key, added_value,
  split_q, split_k, split_v,
  scores, scale, softcap, bias, mask, softmax, dropout,
  weighted_values, merge, gate, gated, output_projection,
};

struct MaskCounts {
  // number of pairs of a query and a key, and number of those pairs that the mask allows; a mask that heads share is counted once
  std::int64_t pairs = 0, attended = 0;
  std::int64_t empty_rows = 0;           // number of rows whose keys are all masked
  bool shared_by_heads = false;
};

struct TraceStep {
  TraceKind kind;
  std::string letters;               // the names of the value's extents: "[B,N,T,H]"
  Tensor value;
  std::optional<MaskCounts> mask{};  // only for TraceKind::mask

  const Shape& shape() const { return value.shape(); }
};

// Returns the steps of a forward pass. Their values are the pass's saved activations and maps that are computed from them. The last value equals the output of
// forward() bit for bit. A trace holds up to seven [*,N,T,S] tensors, so it is meant for small inputs.
std::vector<TraceStep> trace(const MultiHeadAttention& layer, const AttentionInput& input, const AttentionOptions& options = {});

}  // namespace polyhead::nn
#pragma GCC visibility pop
