#include "nn/sequences.h"

#include <algorithm>

#include "sdpa/normal_form.h"

namespace polyhead::nn {

SequenceParts::SequenceParts(const MultiHeadAttentionConfig& config, const AttentionShapes& shapes, const AttentionOptions& options)
    : rank_(shapes.lead.size()) {
  constexpr std::int64_t kBytes = 768 << 10;    // of a second-level cache of 1 MiB
  constexpr std::int64_t kFewestQueries = 16;   // of few queries the time goes into reading keys
  constexpr std::int64_t kPartsPerThread = 4;
  const bool drops = options.mode == Mode::training && config.dropout > 0;
  while (lead_ < rank_ && shapes.lead[lead_] == 1) ++lead_;
  if (lead_ == rank_ || shapes.queries < kFewestQueries || shapes.added_keys > 0 || drops) return;
  const std::int64_t of_query = config.heads * (config.head_width + (config.gate == Gate::sigmoid ? 3 : 1) * config.value_head_width);
  const std::int64_t of_key = config.kv_heads * (config.head_width + config.value_head_width);
  const std::int64_t sequences = numel(shapes.lead) / shapes.lead[lead_];
  const std::int64_t bytes = sequences * (shapes.queries * of_query + shapes.keys * of_key) * static_cast<std::int64_t>(info(config.dtype).size);
  extent_ = size_ = shapes.lead[lead_];
  dimension_ = lead_ < shapes.axis ? lead_ : lead_ + 1;
  const std::int64_t threads = options.executor != nullptr ? options.executor->num_threads() : num_threads();
  const std::int64_t size = std::clamp<std::int64_t>(kBytes / std::max<std::int64_t>(bytes, 1), 1, extent_);
  if (threads == 1 || extent_ / size >= threads * kPartsPerThread) size_ = size;
}

AttentionInput SequenceParts::of(const AttentionInput& input, std::int64_t part) const {
  return {.query = sliced(input.query, dimension_, part), .key = sliced(input.key, dimension_, part), .value = sliced(input.value, dimension_, part)};
}

AttentionOptions SequenceParts::of(const AttentionOptions& options, std::int64_t part) const {
  // The leading dimensions lie before `behind` others, and the first of them may be missing.
  const auto cut = [&](ConstTensorView& view, int behind) {
    if (view) view = sliced(view, view.rank() - behind - rank_ + lead_, part);
  };
  AttentionOptions own = options;
  cut(own.bias, 3);
  cut(own.mask.attend, 3);
  cut(own.mask.block, 3);
  cut(own.mask.attend_keys, 1);
  cut(own.mask.block_keys, 1);
  if (own.mask.key_lengths) own.mask.key_lengths = sliced(own.mask.key_lengths, lead_, part);  // [*] or [*,T]
  return own;
}

void require_pairs(const MultiHeadAttentionConfig& config, const AttentionShapes& shapes, const AttentionOptions& options) {
  Shape q_shape = shapes.lead, k_shape = shapes.lead;
  for (const std::int64_t extent : {config.heads, shapes.queries, std::int64_t{0}}) q_shape.push_back(extent);
  for (const std::int64_t extent : {config.kv_heads, shapes.keys, std::int64_t{0}}) k_shape.push_back(extent);
  const Tensor q(config.dtype, q_shape), k(config.dtype, k_shape);  // no elements: only the sizes matter
  normal_form(MapsInput{.q = q, .k = k}, SdpaOptions{.mask = options.mask, .bias = options.bias}, MapValue::score, "sdpa_forward");
}

}  // namespace polyhead::nn
