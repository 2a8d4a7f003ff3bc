// ForwardStrip describes the rows of a strip in a key block: the keys that they attend to, the addresses of their bias and masks, and the steps from products
// to scores. Only kernel sources (*_kernel.cc) include this file.
#pragma once

#include "cpu/sdpa/forward_scratch.h"
#include "cpu/sdpa/softmax.h"
#include "cpu/sdpa/strip_blocks.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// The steps that turn products q k into scores. plain: none; masked: masks; biased: bias and masks; general: all steps, by loops over memory. Each case has a
// separate template instance, because code for the rare cases would occupy registers that the common cases need.
enum class Scores : std::uint8_t { plain, masked, biased, general };

// A row of a strip in a key block: its keys, and the addresses of its bias and mask bytes for the block's first key.
template <class T>
struct StripRow {
  KeyRange own;
  const void* bias;  // elements of type T or bfloat16
  const std::uint8_t* masks[KeySet::kMostMasks];
};

// If kNative, q and k are multiplied as bfloat16 pairs.
template <class T, bool kNative>
struct ForwardStrip {
  static constexpr int kWidth = kLanes<T>, kPanel = kPanelKeys<T>;

  // score_factor is ScoreScale::factor. If there is a bias, a score is the product q k times score_factor, plus the bias.
  ForwardStrip(const ForwardTask& of_task, const Scratch<T>& scratch, T score_factor)
      : task(of_task),
        s(scratch),
        factor(score_factor),
        ranged(task.ranged() || (task.mask_count > 0 && task.masks[0].blocks != nullptr)),
        scores(scores_of(task)) {}

  const ForwardTask& task;
  const Scratch<T>& s;
  const T factor;
  const bool ranged;  // true: rows have different key ranges; false: each row attends to all keys of the task
  const Scores scores;
  // The next two members describe the key block. Indices of keys are relative to first_key.
  std::int64_t first_key = 0;
  KeyRange block{0, 0};  // the keys of the task that lie in this key block
  // The next members describe the strip of rows.
  std::int64_t first_row = 0, begin = 0;  // begin: first key of the strip, rounded down to whole vectors
  int rows = 0;
  KeyRange inner{0, 0};    // the keys that every row attends to
  int masks_to_apply = 0;  // number of boolean masks that must be applied
  StripBlocks blocks;
  StripRow<T> lines[kMostStripRows];

  void begin_block(std::int64_t first, KeyRange keys) {
    first_key = first, block = inner = keys;
    for (StripRow<T>& line : lines) line.own = block;
  }

  // Finds the keys that the strip's rows attend to in this key block. Returns the range that holds the keys of all rows, without mask blocks at its beginning and
  // end that can be skipped.
  KeyRange load() {
    KeyRange keys = block;
    if (ranged) keys = {s.keys, 0}, inner = {0, s.keys};
    for (int i = 0; i < rows && ranged; ++i) {
      const KeyRange& span = s.spans[first_row + i];
      const KeyRange own = lines[i].own = {larger(span.first - first_key, 0), smaller(span.last - first_key, s.keys)};
      if (!own.empty()) keys = {smaller(keys.first, own.first), larger(keys.last, own.last)};
      inner = {larger(inner.first, own.first), smaller(inner.last, own.last)};
    }
    if (ranged && task.mask_count > 0) {
      blocks.begin(task);
      blocks.add(task, s.rows + first_row, rows);
      keys = blocks.without_skipped(first_key, keys);
      for (int i = 0; i < rows; ++i) lines[i].own = {larger(lines[i].own.first, keys.first), smaller(lines[i].own.last, keys.last)};
    }
    if (scores != Scores::masked && scores != Scores::biased) return keys;
    for (int i = 0; i < rows; ++i) {
      const Row& row = s.rows[first_row + i];
      if (has_narrow_bias()) {
        lines[i].bias = row_of(task.bias, static_cast<const bf16*>(task.bias.data), row) + first_key;
      } else if (task.bias.data != nullptr) {
        lines[i].bias = row_of(task.bias, static_cast<const T*>(task.bias.data), row) + first_key;
      }
      for (int m = 0; m < task.mask_count; ++m) {
        const BooleanMask& mask = task.masks[m];
        lines[i].masks[m] = mask.listed() ? listed_bytes(mask, i, keys) : row_of(mask, mask.data, row) + first_key;
      }
    }
    return keys;
  }

  // Returns the mask bytes of the strip's row i. The bytes are computed only if a tile of `keys` reads them.
  const std::uint8_t* listed_bytes(const BooleanMask& mask, int i, KeyRange keys) const {
    std::uint8_t* const bytes = s.listed + i * s.keys;
    bool partial = false;
    for (std::int64_t panel = keys.first / kPanel * kPanel; panel < keys.last; panel += kPanel) partial |= blocks.at(first_key + panel) == BlockKind::partial;
    if (partial) mask_bytes(mask, s.rows[first_row + i], first_key, keys.first / kPanel * kPanel, smaller(s.keys, task.keys - first_key), bytes);
    return bytes;
  }

  // Returns whether the kernel reads a bfloat16 bias in place and widens it in registers. Only kernels of bfloat16 pairs do so.
  bool has_narrow_bias() const { return kNative && task.bias.data != nullptr && task.bias_dtype == DType::bf16; }

  // Applies bias and masks to whole vectors of a row's products, from key `key` on. All keys of the vectors must exist.
  template <int Columns, bool kBias>
  POLYHEAD_INLINE void finish_row(const StripRow<T>& line, std::int64_t key, Vector<T> (&x)[Columns]) const {
    if constexpr (kBias) {
      const auto add = [&](const auto* bias) {
#pragma GCC unroll 4
        for (int j = 0; j < Columns; ++j) x[j] = multiply_add<T>(x[j], broadcast(factor), load_wide<T>(bias + key + j * kWidth));
      };
      if constexpr (kNative) {
        if (has_narrow_bias()) return add(static_cast<const bf16*>(line.bias)), apply_masks<Columns>(line, key, x);
      }
      add(static_cast<const T*>(line.bias));
    }
    apply_masks<Columns>(line, key, x);
  }

  template <int Columns>
  POLYHEAD_INLINE void apply_masks(const StripRow<T>& line, std::int64_t key, Vector<T> (&x)[Columns]) const {
    for (int m = 0; m < masks_to_apply; ++m) {
#pragma GCC unroll 4
      for (int j = 0; j < Columns; ++j)
        x[j] = where_bytes<T>(line.masks[m] + key + j * kWidth, task.masks[m].attend, x[j], -kInfinity<T>);
    }
  }

 private:
  static Scores scores_of(const ForwardTask& of_task) {
    bool in_registers = of_task.softcap <= 0 && of_task.row_kinds == nullptr &&
                        (of_task.bias.data == nullptr || ((of_task.bias_dtype == kOwnStorage<T> || kNative) && of_task.bias.column == 1));  // if kNative, a float32 or a bfloat16 bias
    for (int i = 0; i < of_task.mask_count; ++i) in_registers &= of_task.masks[i].column == 1;
    if (!in_registers) return Scores::general;
    return of_task.bias.data != nullptr ? Scores::biased : of_task.mask_count != 0 ? Scores::masked : Scores::plain;
  }
};

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
