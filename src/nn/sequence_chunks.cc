#include "nn/sequence_chunks.h"

#include "nn/check.h"
#include "polyhead/attention_arguments.h"
#include "sdpa/normal_form.h"

namespace polyhead::nn {

SequenceChunks::SequenceChunks(const MultiHeadAttentionConfig& config, const AttentionShapes& shapes, const AttentionOptions& options)
    : rank_(shapes.lead.size()) {
  // minimum number of queries for cutting into chunks: with fewer queries, most of the time is spent on reading keys
  constexpr std::int64_t kFewestQueries = 16;
  const bool drops = options.mode == Mode::training && (config.dropout > 0 || options.dropout_keep);
  while (lead_ < rank_ && shapes.lead[lead_] == 1) ++lead_;
  // A call with a score rule is not cut, because the rule needs each sequence's index in the whole call.
  if (lead_ == rank_ || numel(shapes.lead) == 0 || shapes.queries < kFewestQueries || shapes.added_keys > 0 || drops || options.cache || options.score_rule) return;
  dimension_ = lead_ < shapes.axis ? lead_ : lead_ + 1;
  const bool gated = config.gate == Gate::sigmoid;
  const std::int64_t q = config.heads * config.head_width, merged = config.heads * config.value_head_width;
  const std::int64_t k = config.kv_heads * config.head_width, v = config.kv_heads * config.value_head_width;
  const std::int64_t extent = shapes.lead[lead_], sequences = numel(shapes.lead) / extent;
  const std::int64_t elements = sequences * (shapes.queries * ((config.qk_norm ? 2 : 1) * q + (gated ? 3 : 1) * merged) + shapes.keys * ((config.qk_norm ? 2 : 1) * k + v));
  const std::int64_t parameters = (q + (gated ? merged : 0)) * config.query_width + k * config.key_width + v * config.value_width +
                               (config.output == OutputProjection::linear ? merged * config.output_width : 0);
  const auto bytes_of = [](DType dtype) { return static_cast<std::int64_t>(info(dtype).size); };
  chunks_ = Chunks(extent, elements * bytes_of(config.dtype), parameters * bytes_of(accumulation_dtype(config.dtype)), options.executor);
}

AttentionInput SequenceChunks::of(const AttentionInput& input, std::int64_t chunk) const {
  const auto own = [&](ConstTensorView view) { return chunks_.of(view, dimension_, chunk); };
  const auto in_heads = [&](ConstTensorView view) { return chunks_.of(view, lead_, chunk); };
  return {.query = own(input.query),
          .key = own(input.key),
          .value = own(input.value),
          .projected_key = in_heads(input.projected_key),
          .projected_value = in_heads(input.projected_value),
          .projected_key_scale = in_heads(input.projected_key_scale),
          .projected_value_scale = in_heads(input.projected_value_scale)};
}

AttentionOptions SequenceChunks::of(const AttentionOptions& options, std::int64_t chunk) const {
  // `behind` is the number of dimensions after the leading dimensions. A view that broadcasts may lack the first leading dimensions. The index of the dimension
  // to cut is then negative, and every chunk uses the whole view.
  const auto cut = [&](ConstTensorView& view, int behind) {
    if (view) view = chunks_.of(view, view.rank() - behind - rank_ + lead_, chunk);
  };
  AttentionOptions own = options;
  for (ConstTensorView* table : {&own.rotary.cos, &own.rotary.sin, &own.rotary.key_cos, &own.rotary.key_sin}) cut(*table, 2);
  visit_shared_arguments(own, TensorArguments{[&](const Argument& argument, ConstTensorView& view) {
    switch (argument.extent) {
      case ArgumentExtent::pairs:
      case ArgumentExtent::query_blocks: return cut(view, 3);
      case ArgumentExtent::rows:
        if (view.rank() != 1) cut(view, 2);  // a view of one dimension is [N], which all sequences share
        return;
      case ArgumentExtent::keys: return cut(view, 1);
      case ArgumentExtent::sequences: view = chunks_.of(view, lead_, chunk); return;
      default: return;  // all sequences share these tensors
    }
  }});
  return own;
}

void require_sdpa_options(const MultiHeadAttentionConfig& config, const AttentionShapes& shapes, const AttentionOptions& options) {
  // These tensors have H = 0, so they need no memory; only their shapes are read.
  const Tensor q(config.dtype, appended(shapes.lead, {config.heads, shapes.queries, 0}));
  const Tensor k(config.dtype, appended(shapes.lead, {config.kv_heads, shapes.keys, 0}));
  SdpaOptions checked{.empty_rows = config.empty_rows};
  copy_shared_arguments(options, checked);
  require_options({.q = q, .k = k}, checked, "sdpa_forward");
}

}  // namespace polyhead::nn
