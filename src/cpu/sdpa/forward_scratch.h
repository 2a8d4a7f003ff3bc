// Block sizes and scratch memory of the forward pass. For kernel sources only.
#pragma once

#include "cpu/arena.h"
#include "cpu/sdpa/dropout.h"
#include "cpu/sdpa/rows.h"
#include "cpu/tile.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// Whether the task is a single strip, as in decoding. Such a task reads whole panels of keys as they are stored, and packs other panels one at a time.
template <class T>
bool few_rows(const ForwardTask& task) {
  return task.rows <= kStripRows;
}

// Rows of a strip. The scores of a strip stay in the first-level cache beside a panel of keys: 6 x 512 float32 take 12 of its 32 KiB. If values are narrow, a
// strip has the rows of two tiles, which halves how often v is read. With AMX a strip has two blocks of rows for the same reason, and its 66 KiB of scores are
// in the second-level cache.
template <class T>
int strip_rows(const ForwardTask& task) {
  if (few_rows<T>(task)) return kStripRows;
  return kHasAmx || task.v_width <= kTileVectors / 2 * kLanes<T> ? kMostStripRows : kTileRows;
}

// Rows are allocated in multiples of this.
template <class T>
int row_multiple(const ForwardTask& task) {
  return kHasAmx && !few_rows<T>(task) ? kMostStripRows : kRowBlock;
}

// Keys of a key block; a sequence that has fewer keys has one smaller block.
template <class T>
std::int64_t key_block(const HeadGroup& group) {
  const std::int64_t most = forward_key_block(group.qk_width, group.v_width, sizeof(T));
  return smaller(most, round_up(larger(group.keys, 1), 64));
}

// Rows of scores are one cache line longer than the block, so that they begin at different offsets of a page.
template <class T>
std::int64_t score_stride(std::int64_t keys) {
  return keys + 64 / static_cast<std::int64_t>(sizeof(T));
}

// Rows of one pass over the keys if attention weights are computed. Their exponentials, 384 KiB or at least 12 rows, stay in the second-level
// cache until they are divided.
template <class T>
std::int64_t rows_of_attention_weights(const ForwardTask& task) {
  const std::int64_t fitting = 384 * 1024 / (larger(task.keys, 1) * static_cast<std::int64_t>(sizeof(T)));
  return larger(fitting / kMostStripRows, 1) * kMostStripRows;
}

// Whether exponentials are stored directly in the caller's tensor.
template <class T>
bool writes_attention_weights_in_place(const ForwardTask& task) {
  return task.dtype == kOwnStorage<T> && task.attention_weights.column == 1;
}

// Whether v is multiplied as it is stored, without a copy: each element is read once.
template <class T>
bool reads_stored_values(const ForwardTask& task) {
  return few_rows<T>(task) && task.v.column == 1 && multiplies_stored<T>(task.rows, task.v_width);
}

template <class T>
struct Scratch {
  T *q, *k, *v, *lines, *scores, *o, *weights;  // q, k and v hold T, or bfloat16 pairs, which are as wide as float32
  T* bf16_pairs;                                // the strip's exponentials as bfloat16 pairs; a row has half the stride of `scores`
  T* joined;  // if reads_stored_values(): copy of o before a key block is joined, for a second attempt without the non-finite values
  // Per row, for the current key block: its reference, the largest score that this reference allows, and its sums by lane. With AMX `sums` first holds the
  // largest score in each lane.
  T *reference, *limit, *sums;
  T *m, *l;             // per row, of all key blocks so far
  T* share;             // per row, with sinks: see add_sinks
  T* block_references;  // [pass_rows, key blocks]: reference of the exponentials stored for each key block
  Row* rows;
  KeyRange* spans;
  std::uint8_t *bytes, *started;  // mask or keep bytes of a row; 1 if o of a strip has been written
  std::uint8_t* finite;           // 1 if v of a key block is finite
  std::uint8_t* listed;           // with listed blocks: the mask bytes of a strip's rows for the key block
  std::int64_t v_padded, keys, stride, attention_weights_stride;
  std::int64_t depth;  // terms of <q, k>: the width, or with task.native the number of bfloat16 pairs
  std::int64_t pass_rows;  // rows of one pass over the keys
  bool keeps_keys;         // packed key blocks are kept for the next pass

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
    // If bfloat16 values are read as they are stored, v holds only a row of zeros.
    const std::int64_t rows_of_v = reads_stored_values<T>(task) ? (task.native ? 1 : 0) : task.native ? kept / 2 : kept;
    arena.allocate(s.v, rows_of_v * s.v_padded);
    arena.allocate(s.lines, kWidth * task.qk_width);
    arena.allocate(s.scores, strip * s.stride);
    arena.allocate(s.bf16_pairs, task.native ? strip * s.stride / 2 : 0);
    arena.allocate(s.o, task.rows * s.v_padded);
    arena.allocate(s.joined, reads_stored_values<T>(task) ? task.rows * s.v_padded : 0);
    arena.allocate(s.reference, task.rows + kWidth);  // padded by a vector, because these are read in whole vectors from any strip's first row on
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
