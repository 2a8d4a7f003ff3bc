// Computes p = exp(score - lse) and d_score = p (d_p - delta) of a tile while it is in registers. Only kernel sources (*_kernel.cc) include this file.
#pragma once

#include "cpu/sdpa/backward_scratch.h"
#include "cpu/sdpa/pack.h"
#include "cpu/sdpa/strip_tiles.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// Returns the initial sums of a row, before any key is added: 0, or the contribution of the row's sink.
template <class T>
POLYHEAD_INLINE RowSums<T> first_sums(const BackwardTask& task, const BackwardScratch<T>& s, std::int64_t index) {
  RowSums<T> sums{};
  if (task.sink.data != nullptr) sums.p[0] = s.sink[index], sums.d_score[0] = differentiate_sink(s.sink[index], s.delta[index]);
  return sums;
}

// How p and d_x of a row are computed from the row's products with k and v. tiles: in registers. tiles_of_whole_row: in registers and then renormalised, which
// is possible if the key block contains all keys of the row. memory: by loops over arrays in memory. The choice depends on the row alone, so the row's bits do
// not depend on the other rows of its strip.
enum class RowPath : std::uint8_t { tiles, tiles_of_whole_row, memory };

// A strip of rows of a query block. It begins at row `begin` of the block, and the block begins at row first_of_block of the task. Operand is the type in which
// q, k, v and d_out are multiplied: T or bfloat16 pairs.
template <class T, class Operand = T>
struct TileStrip : StripTiles<T> {
  TileStrip(const BackwardTask& of_task, const ScoreScale<T>& of_scale, const BackwardScratch<T>& scratch, std::int64_t first_of_block, int begin, int row_count,
            std::int64_t first_of_keys)
      : StripTiles<T>(of_task, of_scale, scratch.rows + first_of_block + begin, row_count, first_of_keys), task(of_task), s(scratch), first(first_of_block + begin), in_block(begin) {}

  const BackwardTask& task;
  const BackwardScratch<T>& s;
  const std::int64_t first;       // index of the strip's first row among the rows of the task
  const int in_block;             // index of the strip's first row in the query block
  RowPath paths[kStripRows];
  RowSums<T> sums[kStripRows];    // sums of the rows whose keys all lie in this key block

  // Returns the address of the strip's first row in an array that has the rows of the query block.
  T* of_block(T* array, std::int64_t width) const { return array + in_block * width; }
};

// Returns the arguments of the product of the strip with the keys of a panel, from key `begin` on. `rows` holds q or d_out of the query block.
template <class T, class Operand>
POLYHEAD_INLINE Product<T, Operand> product_with_keys(const TileStrip<T, Operand>& strip, T* rows, std::int64_t stride, const T* panels, std::int64_t depth,
                                                      std::int64_t panel, std::int64_t begin) {
  return {.depth = depth,
          .a = reinterpret_cast<const Operand*>(strip.of_block(rows, stride)),
          .a_stride = stride,
          .b = reinterpret_cast<const Operand*>(panels) + panel * depth + (begin - panel),
          .b_stride = kPanelKeys<T>};
}

// Sets x to the products of `Rows` rows of the strip, from row `row` on, with the keys of a panel, from key `begin` on.
template <int Rows, int Columns, class T, class Operand>
POLYHEAD_INLINE void multiply_keys(const TileStrip<T, Operand>& strip, T* rows, std::int64_t stride, const T* panels, std::int64_t depth, int row,
                                   std::int64_t panel, std::int64_t begin, Vector<T> (&x)[Rows][Columns]) {
  sum_tile<Rows, Columns, false, From::second_cache, T, Operand>(product_with_keys(strip, rows, stride, panels, depth, panel, begin), row, 0, x);
}

template <int Rows, int Columns, bool kBias, bool kMasks, class T, class Operand>
POLYHEAD_INLINE void find_probabilities(const TileStrip<T, Operand>& strip, int row, std::int64_t panel, std::int64_t begin) {
  constexpr int kWidth = kLanes<T>;
  const BackwardScratch<T>& s = strip.s;
  if constexpr (kBias) strip.bias.template fetch<Rows>(row, begin - panel);
  T* const p = strip.of_block(s.p, s.stride) + row * s.stride + begin;
  Vector<T> x[Rows][Columns];
  multiply_keys(strip, s.q, s.q_stride, s.k_panels, s.qk_depth, row, panel, begin, x);
  finish_tile<kBias, kMasks>(strip, row, panel, begin, x);
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) {
    const std::int64_t index = strip.first + row + i;
    if constexpr (kBias) {
      exp_of_difference<Columns>(x[i], s.lse[index], strip.scale.natural);
    } else {
      exp_of_score<Columns>(x[i], s.lse_reference[index], strip.scale);
    }
#pragma GCC unroll 4
    for (int j = 0; j < Columns; ++j) store_vector<T>(x[i][j], p + i * s.stride + j * kWidth);
  }
}

template <int Rows, int Columns, bool kWhole, class T, class Operand>
POLYHEAD_INLINE void differentiate_tile(TileStrip<T, Operand>& strip, int row, std::int64_t panel, std::int64_t begin) {
  constexpr int kWidth = kLanes<T>;
  const BackwardScratch<T>& s = strip.s;
  const T *p = strip.of_block(s.p, s.stride) + row * s.stride + begin, *delta = s.delta + strip.first + row;
  T* d_score = strip.of_block(s.d_x, s.stride) + row * s.stride + begin;
  Vector<T> d_p[Rows][Columns];
  multiply_keys(strip, s.d_out, s.d_out_stride, s.v_panels, s.v_depth, row, panel, begin, d_p);
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i, p += s.stride, d_score += s.stride) {
    Vector<T> own[Columns];
#pragma GCC unroll 4
    for (int j = 0; j < Columns; ++j) {
      own[j] = load_vector(p + j * kWidth);
      d_p[i][j] = differentiate_score<T>(own[j], d_p[i][j], delta[i]);
      store_vector<T>(d_p[i][j], d_score + j * kWidth);
    }
    if constexpr (kWhole) strip.sums[row + i].add(own, d_p[i]);
  }
}

template <bool kBias, bool kMasks, class T, class Operand>
void differentiate_panels(TileStrip<T, Operand>& strip, KeyRange keys, bool add_up) {
  const BackwardScratch<T>& s = strip.s;
  const auto skip = [&](std::int64_t begin, std::int64_t end) {
    for (int i = 0; i < strip.rows; ++i) clear(strip.of_block(s.p, s.stride) + i * s.stride, begin, end), clear(strip.of_block(s.d_x, s.stride) + i * s.stride, begin, end);
  };
  for_each_strip_panel<kMasks>(strip, keys, s.panel_bytes, skip, [&](auto count, std::int64_t panel, std::int64_t begin, const StripPanel& rows) {
    if constexpr (kBias) strip.bias.load(strip.task.bias, strip.task.bias_dtype, rows, s.panel_bias);
    // Multiply all rows with the panel of k first, and then all rows with the panel of v, so that each panel stays in the first-level cache while it is used.
    for_each_rows(strip.rows, [&]<int kRows>(int row) { find_probabilities<kRows, count(), kBias, kMasks>(strip, row, panel, begin); });
    if (add_up) {
      for_each_rows(strip.rows, [&]<int kRows>(int row) { differentiate_tile<kRows, count(), true>(strip, row, panel, begin); });
    } else {
      for_each_rows(strip.rows, [&]<int kRows>(int row) { differentiate_tile<kRows, count(), false>(strip, row, panel, begin); });
    }
  });
}

// Computes p and d_score of the strip for `keys`, the range that the strip's rows attend to.
template <class T, class Operand>
void differentiate_tiles(TileStrip<T, Operand>& strip, KeyRange keys) {
  strip.find_inner(strip.s.keys);
  bool add_up = false;
  for (int i = 0; i < strip.rows; ++i) add_up |= strip.paths[i] == RowPath::tiles_of_whole_row;
  for (int i = 0; i < strip.rows && add_up; ++i) strip.sums[i] = first_sums(strip.task, strip.s, strip.first + i);
  if (strip.task.bias.data != nullptr) {
    differentiate_panels<true, true>(strip, keys, add_up);
  } else {
    strip.task.mask_count != 0 ? differentiate_panels<false, true>(strip, keys, add_up)
                               : differentiate_panels<false, false>(strip, keys, add_up);
  }
  if (!add_up) return;
  // The divisions of all rows are done before the loop over the rows, so that the processor can overlap them.
  RowFactors<T> factors[kStripRows];
  for (int i = 0; i < strip.rows; ++i) factors[i] = RowFactors<T>(strip.sums[i]);
  T *p = strip.of_block(strip.s.p, strip.s.stride), *d_score = strip.of_block(strip.s.d_x, strip.s.stride);
  for (int i = 0; i < strip.rows; ++i, p += strip.s.stride, d_score += strip.s.stride) {
    if (strip.paths[i] == RowPath::tiles_of_whole_row)
      normalise_row(strip.own[i].first / kLanes<T> * kLanes<T>, round_up(strip.own[i].last, kLanes<T>), factors[i], p, d_score);
  }
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
