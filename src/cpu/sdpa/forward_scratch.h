// Block sizes and scratch memory of the forward pass. Only kernel sources (*_kernel.cc) include this file.
#pragma once

#include "cpu/arena.h"
#include "cpu/sdpa/dropout.h"
#include "cpu/sdpa/rows.h"
#include "cpu/tile.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// Returns whether the rows of the task are a single strip, as in decoding. Such a task reads whole panels of keys from the caller's tensor where it can, and packs
// other panels one at a time.
template <class T>
bool few_rows(const ForwardTask& task) {
  return task.rows <= kStripRows;
}

// Returns the number of rows of a strip. The scores of a strip and a panel of keys stay in the first-level cache: 6 x 512 float32 scores need 12 of its 32 KiB.
// If the value heads are narrow, a strip has the rows of two tiles, so that v is read half as often. With AMX a strip has two tiles of 16 rows for the same
// reason, and its 66 KiB of scores are in the second-level cache.
template <class T>
int strip_rows(const ForwardTask& task) {
  if (few_rows<T>(task)) return kStripRows;
  return kHasAmx || task.v_width <= kTileVectors / 2 * kLanes<T> ? kMostStripRows : kTileRows;
}

// Memory is allocated for a number of rows that is a multiple of this one.
template <class T>
int row_multiple(const ForwardTask& task) {
  return kHasAmx && !few_rows<T>(task) ? kMostStripRows : kRowBlock;
}

// Returns the number of keys of a key block. A sequence with fewer keys has one smaller key block.
template <class T>
std::int64_t key_block(const HeadGroup& group) {
  const std::int64_t most = forward_key_block(group.qk_width, group.v_width, sizeof(T));
  return smaller(most, round_up(larger(group.keys, 1), 64));
}

// Returns the distance between rows of scores. It is one cache line longer than the key block, so that rows begin at different offsets in a page.
template <class T>
std::int64_t score_stride(std::int64_t keys) {
  return keys + 64 / static_cast<std::int64_t>(sizeof(T));
}

// Returns the number of rows in one pass over the keys if attention weights are computed. The exponentials of these rows (384 KiB, but at least one strip of
// kMostStripRows rows) stay in the second-level cache until they are divided by the rows' sums.
template <class T>
std::int64_t rows_of_attention_weights(const ForwardTask& task) {
  const std::int64_t fitting = 384 * 1024 / (larger(task.keys, 1) * static_cast<std::int64_t>(sizeof(T)));
  return larger(fitting / kMostStripRows, 1) * kMostStripRows;
}

// Returns whether the exponentials of attention weights are stored directly in the caller's tensor.
template <class T>
bool writes_attention_weights_in_place(const ForwardTask& task) {
  return task.dtype == kOwnStorage<T> && task.attention_weights.column == 1;
}

// Returns whether the kernel reads v from the caller's tensor without a copy. It does so if three conditions hold: the task has few rows, so that a copy would
// be used only once or twice; the elements of a row of v are adjacent in memory; and the width is a multiple of the widest tile.
template <class T>
bool reads_stored_values(const ForwardTask& task) {
  return few_rows<T>(task) && task.v.column == 1 && multiplies_stored<T>(task.rows, task.v_width);
}

template <class T>
struct Scratch {
  T *q, *k, *v, *lines, *scores, *o, *weights;  // q, k and v hold T, or bfloat16 pairs, which are as wide as float32
  T* bf16_pairs;                                // the strip's exponentials as bfloat16 pairs; a row has half the stride of `scores`
  // If reads_stored_values(): a copy of o from before the product with v of a key block. If v has NaN or infinities, the product is repeated from this copy.
  T* joined;
  // For each row, in the current key block: the row's reference, the largest score that this reference allows, and the row's sums in each vector lane. With AMX
  // `sums` first holds the row's largest score in each lane.
  T *reference, *limit, *sums;
  T *m, *l;             // per row: reference and sum of the exponentials over all key blocks so far
  T* share;             // per row, with sinks: the factor `share` of add_sinks()
  T* block_references;  // [pass_rows, key blocks]: reference of the exponentials stored for each key block
  Row* rows;
  KeyRange* spans;
  std::uint8_t *bytes, *started;  // bytes: mask bytes or keep bytes of a row; started: for each strip, 1 if o of the strip has been written
  std::uint8_t* finite;           // per key block: 1 if v of the block is finite
  // If the mask has listed blocks (Mask::blocks): the mask bytes that were computed for a strip's rows and the key block.
  std::uint8_t* listed;
  std::int64_t v_padded, keys, stride, attention_weights_stride;
  std::int64_t depth;  // number of terms of <q, k>: the head width or, if task.native, the number of bfloat16 pairs
  std::int64_t pass_rows;  // number of rows in one pass over the keys
  bool keeps_keys;         // true: packed key blocks are kept for the next pass over the keys

  static std::int64_t layout(const ForwardTask& task, void* memory, Scratch& s) {
    constexpr std::int64_t kWidth = kLanes<T>;
    s.v_padded = round_up(task.v_width, kWidth);
    s.depth = task.native ? bf16_pairs_of(task.qk_width) : task.qk_width;
    s.keys = key_block<T>(task);
    s.stride = score_stride<T>(s.keys);
    const bool weights = task.attention_weights.data != nullptr;
    s.pass_rows = weights ? smaller(rows_of_attention_weights<T>(task), task.rows) : task.rows;
    s.keeps_keys = s.pass_rows < task.rows;
    const std::int64_t kept = s.keeps_keys ? round_up(task.keys, s.keys) : s.keys;
    s.attention_weights_stride = score_stride<T>(round_up(task.keys, kWidth));
    Arena arena(memory);
    const std::int64_t strip = round_up(smaller(strip_rows<T>(task), task.rows), row_multiple<T>(task));
    arena.allocate(s.q, round_up(task.rows, row_multiple<T>(task)) * s.depth);
    arena.allocate(s.k, (few_rows<T>(task) ? smaller(kept, kTileVectors * kWidth) : kept) * s.depth);
    // If bfloat16 values are read from the caller's tensor, the array v holds only a row of zeros.
    const std::int64_t rows_of_v = reads_stored_values<T>(task) ? (task.native ? 1 : 0) : task.native ? kept / 2 : kept;
    arena.allocate(s.v, rows_of_v * s.v_padded);
    arena.allocate(s.lines, kWidth * task.qk_width);
    arena.allocate(s.scores, strip * s.stride);
    arena.allocate(s.bf16_pairs, task.native ? strip * s.stride / 2 : 0);
    arena.allocate(s.o, task.rows * s.v_padded);
    arena.allocate(s.joined, reads_stored_values<T>(task) ? task.rows * s.v_padded : 0);
    // Longer by one vector, because the array is read in whole vectors, beginning at the first row of any strip.
    arena.allocate(s.reference, task.rows + kWidth);
    arena.allocate(s.limit, round_up(task.rows, kWidth));
    arena.allocate(s.m, task.rows + kWidth);
    arena.allocate(s.l, task.rows + kWidth);
    arena.allocate(s.block_references, weights ? s.pass_rows * blocks_of_keys(task, s) : 0);
    arena.allocate(s.sums, task.rows * kWidth);
    arena.allocate(s.share, task.sink.data != nullptr ? task.rows : 0);
    arena.allocate(s.rows, task.rows);
    arena.allocate(s.spans, task.rows);
    arena.allocate(s.bytes, s.keys + kKeepMargin);
    arena.allocate(s.started, task.rows / kTileRows + 1);
    arena.allocate(s.finite, kept / s.keys);
    bool lists = false;
    for (int i = 0; i < task.mask_count; ++i) lists |= task.masks[i].listed();
    arena.allocate(s.listed, lists ? strip * s.keys : 0);
    arena.allocate(s.weights, weights && !writes_attention_weights_in_place<T>(task) ? s.pass_rows * s.attention_weights_stride : 0);
    return arena.used();
  }
  static std::int64_t blocks_of_keys(const ForwardTask& task, const Scratch& s) { return round_up(task.keys, s.keys) / s.keys; }
};

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
