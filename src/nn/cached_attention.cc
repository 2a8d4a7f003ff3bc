#include "nn/cached_attention.h"

#include <algorithm>
#include <vector>

#include "core/text.h"
#include "nn/sequence_chunks.h"
#include "sdpa/normal_form.h"

namespace polyhead::nn {

Mask mask_in_cache(const AttentionOptions& options, ConstTensorView lengths, ConstTensorView before) {
  Mask mask = options.mask;
  mask.key_lengths = lengths;
  if (mask.causal) mask.causal = Causal::top_left();
  if (mask.causal || mask.window.left || mask.window.right || options.relative_bias) mask.diagonal_offsets = before;
  return mask;
}

void require_cache(const char* operation, const MultiHeadAttentionConfig& config, const AttentionInput& input,
                   const AttentionOptions& options, AttentionShapes shapes) {
  require(options.cache || !options.new_tokens, operation, ": new_tokens is given without a cache");
  require(options.cache || !options.attend_later_tokens, operation, ": attend_later_tokens is given without a cache");
  require(!options.attend_later_tokens || !options.mask.causal, operation, ": attend_later_tokens cannot be combined with a causal mask, which masks all later tokens");
  if (!options.cache) return;
  const KeyValueCache& cache = *options.cache;
  const Mask& mask = options.mask;
  require(options.mode == Mode::evaluation, operation, ": a cache cannot be used in training; a backward pass needs the keys and values of the whole text");
  require(config.global_query == GlobalQuery::off, operation, ": a cache cannot be combined with a global query, which is a mean over all positions");
  require(shapes.added_keys == 0, operation, ": a cache cannot be combined with add_bias_kv or add_zero_attn, whose keys would follow the cached ones");
  require(!input.key && !input.projected_key, operation, ": a cache cannot be combined with ", input.key ? "key" : "projected_key",
          "; the keys and values in a cache are those of the query input");
  require(!mask.query_offsets && !mask.key_offsets, operation,
          ": a cache cannot be combined with documents (query_offsets); each sequence of a cache is one text");
  require(!mask.key_lengths, operation, ": a cache cannot be combined with key_lengths; the cache itself gives the lengths");
  require(!mask.diagonal_offsets, operation, ": a cache cannot be combined with diagonal_offsets; the cache itself gives the offsets");
  require(
      !mask.window.diagonal && (!mask.causal || mask.causal->corner != Diagonal::Corner::offset), operation,
      ": a cache cannot be combined with an offset of the diagonal; the cache itself gives the offset, so causal may be top_left or bottom_right, which mean the same here");
  require(!options.relative_bias.diagonal, operation, ": a cache cannot be combined with a diagonal of relative_bias; the cache itself gives the diagonal");
  const KeyValueCacheConfig& own = cache.config();
  require(shapes.lead == Shape{own.sequences}, operation, ": query is ", input.query.shape(), " with leading dimensions ", shapes.lead,
          "; the cache has ", own.sequences, " sequences, so they must be [", own.sequences, "]");
  require(own.kv_heads == config.kv_heads && own.head_width == config.head_width && own.value_head_width == config.value_head_width,
          operation, ": the cache has ", own.kv_heads, " heads of widths ", own.head_width, " and ", own.value_head_width,
          "; the layer has ", config.kv_heads, " of ", config.head_width, " and ", config.value_head_width);
  require(may_store_keys(config.dtype, own.dtype), operation, ": the cache is ", own.dtype, " and the layer ", config.dtype,
          "; a cache is ", kKeyStorage);
  const std::vector<std::int64_t> after = cache.lengths_after(shapes.queries, options.new_tokens);
  shapes.keys = after.empty() ? 0 : *std::ranges::max_element(after);
  require_pairs(operation, "attend", mask.attend, shapes);
  require_pairs(operation, "block", mask.block, shapes);
  require_pairs(operation, "bias", options.bias, shapes);
  AttentionOptions whole = options;
  whole.mask = mask_in_cache(options, {after.data(), {own.sequences}}, cache.key_lengths());
  require_sdpa_options(config, shapes, whole);
}

}  // namespace polyhead::nn
