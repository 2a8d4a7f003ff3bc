// Block sizes and scratch memory of the backward pass. Only kernel sources (*_kernel.cc) include this file.
#pragma once

#include "cpu/arena.h"
#include "cpu/sdpa/dropout.h"
#include "cpu/sdpa/pack.h"
#include "cpu/sdpa/softmax.h"
#include "cpu/tile.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// kBlockRows is the number of rows of a query block. In float32, p and d_x of 96 rows x 256 keys need 102 KiB each. For heads of width 64 and 256 keys, these
// arrays together need 320 KiB: k as rows, k and v as panels, d_k and d_v. With AMX, p and d_x are rounded to bfloat16 (backward_amx.h), so that twice as many
// rows fit into the cache, and d_k and d_v are loaded and stored half as often.
constexpr int kBlockRows = static_cast<int>(kBackwardBlockRows) * (kHasAmx ? 2 : 1);
static_assert(kBlockRows % kStripRows == 0 && kBlockRows % (2 * kTermBlock) == 0);
inline constexpr int kDoubleStripRows = 32;  // with AMX: number of rows whose products are computed together; they are two rows of tiles
static_assert(!kHasAmx || (kDoubleStripRows == 2 * kStripRows && kBlockRows % kDoubleStripRows == 0));
template <class T>
constexpr std::int64_t kBlockKeys = backward_block_keys(sizeof(T));

template <class T>
struct BackwardScratch {
  // If task.native, k_panels, v_panels, k, q and d_out hold bfloat16 pairs, which are as wide as a float32. A pair holds two neighbouring columns of a row; in the
  // array k a pair holds two neighbouring keys.
  T *k_panels, *v_panels, *k, *d_k, *d_v, *d_k_split, *d_v_split, *lines, *p, *d_x, *q, *q_finite, *d_out, *d_out_finite, *softcap_derivative;
  // The next five arrays exist only if task.native. d_x_pairs [kBlockRows, stride / 2] holds d_x in pairs of neighbouring keys. The other four hold p, d_x, q and
  // d_out in pairs of neighbouring rows. With AMX all five are in the order of AMX tiles, and the arrays p and d_x hold only the rows of a double strip.
  T *d_x_pairs, *p_columns, *d_x_columns, *q_columns, *d_out_columns;
  T *shift, *lse, *inverse, *delta;  // for each row, the numbers of p = inverse * exp(factor * (x - shift) - lse), and delta
  LseReference<T>* lse_reference;    // per row: lse in the form that exp_of_score() takes
  T *before_rule, *rule_copy;        // only with a score rule: the scaled scores of a strip, and scratch of the same size
  T* sink;                           // per row: the attention weight of the row's sink; not allocated without sink logits
  Row* rows;
  KeyRange* spans;
  std::uint8_t *bytes, *panel_bytes;
  T* panel_bias;
  std::int64_t qk_padded, v_padded, keys, stride, row_count;
  std::int64_t qk_depth, v_depth;    // number of terms of <q, k> and <d_out, v>: the head widths or, if task.native, the numbers of bfloat16 pairs
  std::int64_t q_stride, d_out_stride;  // distances between rows of q and between rows of d_out

  static std::int64_t layout(const BackwardTask& task, void* memory, BackwardScratch& s) {
    constexpr std::int64_t kWidth = kLanes<T>;
    s.qk_padded = round_up(task.qk_width, kWidth), s.v_padded = round_up(task.v_width, kWidth);
    s.keys = smaller(kBlockKeys<T>, round_up(larger(task.keys, 1), 64));
    s.stride = s.keys + 64 / static_cast<std::int64_t>(sizeof(T));
    s.row_count = task.rows;
    s.qk_depth = task.native ? bf16_pairs_of(task.qk_width) : task.qk_width, s.v_depth = task.native ? bf16_pairs_of(task.v_width) : task.v_width;
    s.q_stride = task.native ? s.qk_depth : s.qk_padded, s.d_out_stride = task.native ? s.v_depth : s.v_padded;
    Arena arena(memory);
    arena.allocate(s.k_panels, s.keys * s.qk_depth);
    arena.allocate(s.v_panels, s.keys * s.v_depth);
    arena.allocate(s.k, (task.native ? s.keys / 2 : s.keys) * s.qk_padded);
    arena.allocate(s.d_k, s.keys * s.qk_padded);
    arena.allocate(s.d_v, s.keys * s.v_padded);
    const std::int64_t split_keys = task.rows > task.rows_per_split ? s.keys : 0;
    arena.allocate(s.d_k_split, split_keys * s.qk_padded);
    arena.allocate(s.d_v_split, split_keys * s.v_padded);
    arena.allocate(s.lines, larger(kWidth, 2) * larger(task.qk_width, task.v_width));
    constexpr int kProductRows = kHasAmx ? kDoubleStripRows : kBlockRows;
    arena.allocate(s.p, kProductRows * s.stride);
    arena.allocate(s.d_x, kProductRows * s.stride);
    constexpr int kReadRows = kBlockRows + kRowBlock - 1;  // more rows than the block has, because AMX reads 16 rows from any row of the block on
    arena.allocate(s.q, kReadRows * s.q_stride);
    arena.allocate(s.d_out, kReadRows * s.d_out_stride);
    const std::int64_t copied_rows = task.native ? 0 : kBlockRows, paired_rows = task.native ? kBlockRows / 2 : 0;
    arena.allocate(s.q_finite, copied_rows * s.qk_padded);
    arena.allocate(s.d_out_finite, copied_rows * s.v_padded);
    for (T** array : {&s.d_x_pairs, &s.p_columns, &s.d_x_columns}) arena.allocate(*array, paired_rows * s.stride);
    arena.allocate(s.q_columns, paired_rows * s.qk_padded);
    arena.allocate(s.d_out_columns, paired_rows * s.v_padded);
    arena.allocate(s.softcap_derivative, s.stride);
    for (T** array : {&s.shift, &s.lse, &s.inverse, &s.delta}) arena.allocate(*array, s.row_count);
    arena.allocate(s.lse_reference, s.row_count);
    for (T** array : {&s.before_rule, &s.rule_copy}) arena.allocate(*array, task.rule != nullptr ? kStripRows * s.stride : 0);
    arena.allocate(s.sink, task.sink.data != nullptr ? s.row_count : 0);
    arena.allocate(s.rows, s.row_count);
    arena.allocate(s.spans, s.row_count);
    arena.allocate(s.bytes, s.keys + kKeepMargin);
    constexpr int kPanelRows = kHasAmx ? kDoubleStripRows : kStripRows;
    arena.allocate(s.panel_bytes, KeySet::kMostMasks * kPanelRows * kPanelKeys<T>);
    arena.allocate(s.panel_bias, kPanelRows * kPanelKeys<T>);
    return arena.used();
  }
};

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
