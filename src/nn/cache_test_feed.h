// Computes a layer's output through a cache, a few tokens at a time, for tests.
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
  const Tensor& slopes;  // the slopes of ALiBi; may be absent
  KeyValueCache& cache;

  // Converts [B,T,E] to the layer's order of dimensions, and back.
  template <class View>
  View ordered(const View& view) const {
    return layer.config.axis == 0 ? view.transpose(0, 1) : view;
  }

  // Computes the rows of `out` for the next counts[b] tokens of each sequence b of x [B,T,E]. The cache keeps the tokens.
  void feed(const Tensor& x, const std::vector<std::int64_t>& counts, Tensor& out) const {
    const auto sequences = static_cast<std::int64_t>(counts.size()), tokens = std::ranges::max(counts);
    Tensor some(x.dtype(), {sequences, tokens, x.extent(-1)}), result(x.dtype(), {sequences, tokens, out.extent(-1)});
    fill(some, test::kNaN);  // rows beyond a sequence's count are NaN, because they must not be read
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
    if (!equal || cache.length(0) == 0) options.new_tokens = new_tokens;  // if all counts are equal, new_tokens need not be given; both ways are tested
    layer.forward({.query = ordered(some.view())}, ordered(result.view()), options);
    for (std::int64_t b = 0; b < sequences; ++b) {
      const std::int64_t begin = first[static_cast<std::size_t>(b)], count = counts[static_cast<std::size_t>(b)];
      EXPECT_EQ(cache.length(b), begin + count);
      copy(result.view().select(0, b).slice(0, 0, count), out.view().select(0, b).slice(0, begin, begin + count));
    }
  }
};

}  // namespace polyhead::nn
