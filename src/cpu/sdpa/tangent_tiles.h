// Computes p = exp(score - lse) and p score' of a tile while it is in registers. Only kernel sources (*_kernel.cc) include this file.
#pragma once

#include "cpu/sdpa/jvp_scratch.h"
#include "cpu/sdpa/strip_tiles.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

template <class T>
struct TangentStrip : StripTiles<T> {
  TangentStrip(const JvpTask& of_task, const ScoreScale<T>& of_scale, const JvpScratch<T>& scratch, std::int64_t begin, int row_count, std::int64_t first_of_keys)
      : StripTiles<T>(of_task, of_scale, scratch.rows + begin, row_count, first_of_keys), task(of_task), s(scratch), first(begin) {}

  const JvpTask& task;
  const JvpScratch<T>& s;
  const std::int64_t first;  // index of the strip's first row among the rows of the task
  PanelBias<T> bias_tangent;
  Vector<T> l[kStripRows], m[kStripRows];  // per row and vector lane: the sum of p, and the sum of p score'

  // Adds to x the products of rows of q or q', from row `row` on, with a panel of k or k'.
  template <int Rows, int Columns>
  POLYHEAD_INLINE void add_products(const T* q, const T* panels, int row, std::int64_t panel, std::int64_t begin, Vector<T> (&x)[Rows][Columns]) const {
    const Product<T> product{.depth = task.qk_width, .a = q + first * s.qk_padded, .a_stride = s.qk_padded, .b = panels + panel * task.qk_width + (begin - panel), .b_stride = kPanelKeys<T>};
    add_terms<Rows, Columns, false, From::second_cache>(product, row, 0, 0, product.depth, x);
  }
};

// Computes p and the sum of p. It uses the same exponential as for_each_weight(), because the kernel of sdpa_backward_backward() divides the exponentials of
// for_each_weight() by the sum that this function computes.
template <int Rows, int Columns, bool kBias, bool kMasks, class T>
POLYHEAD_INLINE void weigh_tile(const TangentStrip<T>& strip, int row, std::int64_t panel, std::int64_t begin) {
  const JvpScratch<T>& s = strip.s;
  if constexpr (kBias) strip.bias.template fetch<Rows>(row, begin - panel);
  Vector<T> x[Rows][Columns] = {};
  strip.add_products(s.q, s.k_panels, row, panel, begin, x);
  finish_tile<kBias, kMasks>(strip, row, panel, begin, x);
  T* p = s.p + row * s.stride + begin;
  const T factor = kBias ? T{1} : strip.scale.factor;
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i, p += s.stride) {
    const Vector<T> lse = broadcast(-s.values[strip.first + row + i].lse);
#pragma GCC unroll 4
    for (int j = 0; j < Columns; ++j) x[i][j] = multiply_add<T>(x[i][j], broadcast(factor), lse);
    exp_of_difference<Columns>(x[i], T{0}, strip.scale.natural);
#pragma GCC unroll 4
    for (int j = 0; j < Columns; ++j) store_vector<T>(x[i][j], p + j * kLanes<T>);
  }
}

// Replaces t by p score'. The result is 0 where p is 0, because tangents of masked keys may be NaN.
template <int Rows, int Columns, bool kBias, class T>
POLYHEAD_INLINE void move_tile(TangentStrip<T>& strip, int row, std::int64_t panel, std::int64_t begin) {
  const JvpScratch<T>& s = strip.s;
  if constexpr (kBias) strip.bias_tangent.template fetch<Rows>(row, begin - panel);
  Vector<T> t[Rows][Columns] = {};
  if (strip.task.tangents.q.data != nullptr) strip.add_products(s.q_tangent, s.k_panels, row, panel, begin, t);
  if (strip.task.tangents.k.data != nullptr) strip.add_products(s.q, s.k_tangent_panels, row, panel, begin, t);
  const T *p = s.p + row * s.stride + begin, factor = strip.scale.factor;
  T* to = s.t + row * s.stride + begin;
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i, p += s.stride, to += s.stride) {
    if constexpr (kBias) {
      strip.bias_tangent.add(row + i, begin - panel, factor, t[i]);
    } else {
#pragma GCC unroll 4
      for (int j = 0; j < Columns; ++j) t[i][j] *= factor;
    }
    Vector<T> l = strip.l[row + i], m = strip.m[row + i];
#pragma GCC unroll 4
    for (int j = 0; j < Columns; ++j) {
      const Vector<T> own = load_vector(p + j * kLanes<T>), weighted = own == T{0} ? Vector<T>{} : own * t[i][j];
      store_vector<T>(weighted, to + j * kLanes<T>);
      l += own, m += weighted;
    }
    strip.l[row + i] = l, strip.m[row + i] = m;
  }
}

template <bool kBias, bool kMasks, class T>
void weigh_panels(TangentStrip<T>& strip, KeyRange keys) {
  const JvpScratch<T>& s = strip.s;
  const bool of_bias = kBias && strip.task.tangents.bias.data != nullptr;
  const auto skip = [&](std::int64_t begin, std::int64_t end) {
    for (int i = 0; i < strip.rows; ++i) clear(s.p + i * s.stride, begin, end), clear(s.t + i * s.stride, begin, end);
  };
  for_each_strip_panel<kMasks>(strip, keys, s.panel_bytes, skip, [&](auto count, std::int64_t panel, std::int64_t begin, const StripPanel& rows) {
    if constexpr (kBias) strip.bias.load(strip.task.bias, strip.task.bias_dtype, rows, s.panel_bias);
    if (of_bias) strip.bias_tangent.load(strip.task.tangents.bias, strip.task.bias_dtype, rows, s.panel_bias_tangent);
    // Multiply all rows with the panel of k before any row with the panel of k', so that each panel stays in the first-level cache while it is used.
    for_each_rows(strip.rows, [&]<int kRows>(int row) { weigh_tile<kRows, count(), kBias, kMasks>(strip, row, panel, begin); });
    if (of_bias) {
      for_each_rows(strip.rows, [&]<int kRows>(int row) { move_tile<kRows, count(), kBias>(strip, row, panel, begin); });
    } else {
      for_each_rows(strip.rows, [&]<int kRows>(int row) { move_tile<kRows, count(), false>(strip, row, panel, begin); });
    }
  });
}

// Computes p and p score' of the strip for `keys`, the range that the strip's rows attend to, and adds them to the sums l and m.
template <class T>
void weigh_tiles(TangentStrip<T>& strip, KeyRange keys) {
  strip.find_inner(strip.s.keys);
  for (int i = 0; i < strip.rows; ++i) strip.l[i] = strip.m[i] = Vector<T>{};
  if (strip.task.bias.data != nullptr) return weigh_panels<true, true>(strip, keys);
  strip.task.mask_count != 0 ? weigh_panels<false, true>(strip, keys) : weigh_panels<false, false>(strip, keys);
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
