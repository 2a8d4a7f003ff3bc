// A layer's forward pass step by step, for reading: which steps, in which order, with which shapes, and the numbers.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "polyhead/nn/multi_head_attention.h"

namespace polyhead::nn {

// In the order of the layer. A layer has those that its configuration, inputs and options call for.
enum class TraceKind : std::uint8_t {
  query, key, value, mean_query,
  projection_q, projection_k, projection_v, rotary_q, rotary_k, added_key, added_value,
  split_q, split_k, split_v,
  scores, scale, softcap, bias, mask, softmax, dropout,
  weighted_values, merge, gate, gated, output_projection,
};

struct MaskCounts {
  std::int64_t pairs = 0, attended = 0;  // of the mask's own extents: the heads count once where they share it
  std::int64_t empty_rows = 0;           // rows without a key
  bool shared_by_heads = false;
};

struct TraceStep {
  TraceKind kind;
  std::string letters;               // of the value's extents: "[B,N,T,H]"
  Tensor value;
  std::optional<MaskCounts> mask{};  // of the mask step

  const Shape& shape() const { return value.shape(); }
};

// Every value is read from the forward pass itself (its saved activations, and maps over them), so the last one is bit for bit what forward()
// writes. Holds up to seven [*,N,T,S] tensors: meant for small inputs.
std::vector<TraceStep> trace(const MultiHeadAttention& layer, const AttentionInput& input, const AttentionOptions& options = {});

}  // namespace polyhead::nn
