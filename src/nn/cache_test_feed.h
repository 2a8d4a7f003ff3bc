// Feeds a layer a few tokens at a time through a cache, for tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "polyhead/nn/multi_head_attention.h"
#include "polyhead/nn/rotary_embedding.h"
#include "support/compare.h"

namespace polyhead::nn {

struct CachedLayer {
  const MultiHeadAttention& layer;
  const Mask& mask;
  const std::optional<RotaryEmbedding>& embedding;
  const Tensor& slopes;  // ALiBi's slopes; may be absent
  KeyValueCache& cache;

  // Converts between [B,T,E] and the layer's order of dimensions.
  template <class View>
  View ordered(const View& view) const {
    return layer.config.axis == 0 ? view.transpose(0, 1) : view;
  }

  // Appends the next counts[b] tokens of x [B,T,E] for each sequence b and writes their rows of out.
  void feed(const Tensor& x, const std::vector<std::int64_t>& counts, Tensor& out) const {
    const auto sequences = static_cast<std::int64_t>(counts.size()), tokens = std::ranges::max(counts);
    Tensor some(x.dtype(), {sequences, tokens, x.extent(-1)}), result(x.dtype(), {sequences, tokens, out.extent(-1)});
    fill(some, test::kNaN);  // rows beyond a sequence's count must not be read
    std::vector<std::int64_t> first;
    for (std::int64_t b = 0; b < sequences; ++b) {
      const std::int64_t begin = first.emplace_back(cache.length(b)), count = counts[static_cast<std::size_t>(b)];
      copy(x.view().select(0, b).slice(0, begin, begin + count), some.view().select(0, b).slice(0, 0, count));
    }
    RotaryTables tables;
    AttentionOptions options{.mask = mask, .relative_bias = {.slopes = slopes}, .cache = &cache};
    if (embedding) tables = embedding->tables_from(cache.key_lengths(), tokens), options.rotary = tables.rotary();
    const Tensor new_tokens = Tensor::of<std::int64_t>({sequences}, std::span(counts));
    const bool equal = std::ranges::all_of(counts, [&](std::int64_t count) { return count == tokens; });
    if (!equal || cache.length(0) == 0) options.new_tokens = new_tokens;  // equal counts may be given or left out
    layer.forward({.query = ordered(some.view())}, ordered(result.view()), options);
    for (std::int64_t b = 0; b < sequences; ++b) {
      const std::int64_t begin = first[static_cast<std::size_t>(b)], count = counts[static_cast<std::size_t>(b)];
      EXPECT_EQ(cache.length(b), begin + count);
      copy(result.view().select(0, b).slice(0, 0, count), out.view().select(0, b).slice(0, begin, begin + count));
    }
  }
};

}  // namespace polyhead::nn
