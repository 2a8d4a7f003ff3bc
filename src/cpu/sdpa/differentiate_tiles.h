// Scores, p = exp(score - lse) and d_x = p (d_p - delta) tile by tile, while they are in registers: for a strip whose scores are its products
// alone. For kernel sources only.
#pragma once

#include "cpu/sdpa/backward_scratch.h"
#include "cpu/sdpa/pack.h"
#include "cpu/sdpa/softmax.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

template <class T>
struct ProductStrip {
  const BackwardTask& task;
  const ScoreScale<T>& scale;
  const BackwardScratch<T>& s;
  std::int64_t first;  // row; its lse and delta are finite, as the others'
  int rows;
  Span own[kStripRows];  // the keys that each row has; p and d_x of others are zero
  Span inner;            // the keys that all rows have

  // The strip's first row of an array of the block.
  T* of_block(T* array, std::int64_t width) const { return array + first % kBlockRows * width; }
};

template <int Rows, int Columns, class T>
POLYHEAD_INLINE void find_probabilities(const ProductStrip<T>& strip, int row, std::int64_t panel, std::int64_t begin) {
  constexpr int kWidth = kLanes<T>;
  const std::int64_t width = strip.task.qk_width, stride = strip.s.stride;
  Vector<T> x[Rows][Columns];
  sum_tile<Rows, Columns, false, From::second_cache, T>({.depth = width,
                                                         .a = strip.of_block(strip.s.q, strip.s.qk_padded),
                                                         .a_stride = strip.s.qk_padded,
                                                         .b = strip.s.k_panels + panel * width + (begin - panel),
                                                         .b_stride = kPanelKeys<T>},
                                                        row, 0, x);
  if (begin < strip.inner.first || begin + Columns * kWidth > strip.inner.last) {
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) keep_between<T>(strip.own[row + i], begin, x[i]);
  }
  T* const p = strip.of_block(strip.s.p, stride) + row * stride + begin;
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) {
    exp_of_score<Columns>(x[i], strip.s.lse[strip.first + row + i], strip.scale);
#pragma GCC unroll 4
    for (int j = 0; j < Columns; ++j) store_vector<T>(x[i][j], p + i * stride + j * kWidth);
  }
}

template <int Rows, int Columns, class T>
POLYHEAD_INLINE void differentiate_tile(const ProductStrip<T>& strip, int row, std::int64_t panel, std::int64_t begin) {
  constexpr int kWidth = kLanes<T>;
  const std::int64_t width = strip.task.v_width, stride = strip.s.stride;
  Vector<T> d_p[Rows][Columns];
  sum_tile<Rows, Columns, false, From::second_cache, T>({.depth = width,
                                                         .a = strip.of_block(strip.s.d_out, strip.s.v_padded),
                                                         .a_stride = strip.s.v_padded,
                                                         .b = strip.s.v_panels + panel * width + (begin - panel),
                                                         .b_stride = kPanelKeys<T>},
                                                        row, 0, d_p);
  const T *p = strip.of_block(strip.s.p, stride) + row * stride + begin, *delta = strip.s.delta + strip.first + row;
  const T factor = strip.scale.factor;
  T* d_x = strip.of_block(strip.s.d_x, stride) + row * stride + begin;
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i, p += stride, d_x += stride) {
#pragma GCC unroll 4
    for (int j = 0; j < Columns; ++j) {
      const Vector<T> own = load_vector(p + j * kWidth);
      store_vector<T>(own == T{0} ? Vector<T>{} : own * (d_p[i][j] - delta[i]) * factor,
                      d_x + j * kWidth);  // d_p of a masked key may be NaN
    }
  }
}

// f<rows>(row) for the strip's rows, some at a time.
template <class F>
POLYHEAD_INLINE void for_each_rows(int rows, const F& f) {
  int row = 0;
  for (; row + kTileRows <= rows; row += kTileRows) f.template operator()<kTileRows>(row);
  for (; row + 2 <= rows; row += 2) f.template operator()<2>(row);
  for (; row < rows; ++row) f.template operator()<1>(row);
}

// `keys`: those that any of the rows has. Zero in the rest of `whole`.
template <class T>
void differentiate_strip(const ProductStrip<T>& strip, Span keys, Span whole) {
  for_each_panel<T>(keys.first, keys.last, [&](std::int64_t panel, std::int64_t begin, int vectors) {
    with_count<kTileVectors>(vectors, [&](auto count) {
      // A panel of k, then one of v, which stay in the first-level cache for all rows.
      for_each_rows(strip.rows, [&]<int kRows>(int row) { find_probabilities<kRows, count()>(strip, row, panel, begin); });
      for_each_rows(strip.rows, [&]<int kRows>(int row) { differentiate_tile<kRows, count()>(strip, row, panel, begin); });
    });
  });
  const std::int64_t begin = keys.first / kLanes<T> * kLanes<T>, end = round_up(keys.last, kLanes<T>);
  for (T* row : {strip.of_block(strip.s.p, strip.s.stride), strip.of_block(strip.s.d_x, strip.s.stride)}) {
    for (int i = 0; i < strip.rows; ++i, row += strip.s.stride) clear(row, whole.first, begin), clear(row, end, whole.last);
  }
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
