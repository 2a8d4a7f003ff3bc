// StripTiles is a strip of rows whose products with keys are computed and turned into scores in registers, one panel of keys at a time. Only kernel sources
// (*_kernel.cc) include this file.
#pragma once

#include "cpu/sdpa/panel_rows.h"
#include "cpu/sdpa/softmax.h"
#include "cpu/sdpa/strip_blocks.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// The arrays are not initialised, because clearing 2 KiB for each strip would take measurable time.
template <class T>
struct StripTiles {
  StripTiles(const HeadGroup& of_group, const ScoreScale<T>& of_scale, const Row* of_rows, int row_count, std::int64_t first_of_keys)
      : group(of_group), scale(of_scale), first_row(of_rows), rows(row_count), first_key(first_of_keys) {}

  const HeadGroup& group;
  const ScoreScale<T>& scale;
  const Row* const first_row;
  const int rows;
  const std::int64_t first_key;  // first key of the key block
  KeyRange own[kStripRows];      // the keys of each row, relative to first_key
  KeyRange inner;                // the keys that every row attends to
  StripBlocks blocks;
  PanelBias<T> bias;
  PanelMasks<T> masks;

  void find_inner(std::int64_t keys) {
    inner = {0, keys};
    for (int i = 0; i < rows; ++i) inner = {larger(inner.first, own[i].first), smaller(inner.last, own[i].last)};
  }
};

// Divides the rows into groups and calls f<count>(row) for each group. Most groups have as many rows as a tile. The remaining rows form groups of 2 and 1.
template <class F>
POLYHEAD_INLINE void for_each_rows(int rows, const F& f) {
  int row = 0;
  for (; row + kTileRows <= rows; row += kTileRows) f.template operator()<kTileRows>(row);
  for (; row + 2 <= rows; row += 2) f.template operator()<2>(row);
  for (; row < rows; ++row) f.template operator()<1>(row);
}

// Divides `keys` into panels. For each panel that the mask does not skip, calls f(count, panel, begin, rows) with `count` vectors of keys from key `begin` on.
// For each panel that the mask skips, calls skip(begin, end).
template <bool kMasks, class T, class Skip, class F>
POLYHEAD_INLINE void for_each_strip_panel(StripTiles<T>& strip, KeyRange keys, std::uint8_t* bytes, const Skip& skip, const F& f) {
  for_each_panel<T>(keys.first, keys.last, [&](std::int64_t panel, std::int64_t begin, int vectors) {
    BlockKind block = BlockKind::full;
    if constexpr (kMasks) block = strip.blocks.at(strip.first_key + panel);
    if (block == BlockKind::skip) return skip(begin, begin + vectors * kLanes<T>);
    const StripPanel rows(strip.group, strip.first_row, strip.rows, strip.first_key + panel, kPanelKeys<T>);
    strip.masks.load(strip.group, rows, block != BlockKind::full, bytes);
    with_count<kTileVectors>(vectors, [&](auto count) { f(count, panel, begin, rows); });
  });
}

// Replaces the products of `Rows` rows of the strip, from row `row` on, with scores. A score is -infinity where the row does not attend to the key. Without a
// bias, scores are not yet multiplied by the scale's factor; the exponential does this.
template <bool kBias, bool kMasks, int Rows, int Columns, class T>
POLYHEAD_INLINE void finish_tile(const StripTiles<T>& strip, int row, std::int64_t panel, std::int64_t begin, Vector<T> (&x)[Rows][Columns]) {
  if constexpr (kBias || kMasks) {
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
      if constexpr (kBias) strip.bias.add(row + i, begin - panel, strip.scale.factor, x[i]);
      strip.masks.apply(row + i, begin - panel, x[i]);
    }
  }
  if (begin < strip.inner.first || begin + Columns * kLanes<T> > strip.inner.last) {
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) keep_between<T>(strip.own[row + i], begin, x[i]);
  }
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
