// StripBlocks says for each block of keys whether the boolean masks allow none, some or all of the block's keys to the rows of a strip. Only kernel sources
// (*_kernel.cc) include this file.
#pragma once

#include "cpu/sdpa/rows.h"
#include "cpu/tile.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

static_assert(kRowMultiple == 2 * kTileRows);

// The keys of a tile must lie in one column of mask blocks, so that the kind of a mask block holds for all keys of the tile.
static_assert(kMaskBlockKeys % kPanelKeys<float> == 0 && kMaskBlockKeys % kPanelKeys<double> == 0);

class StripBlocks {
 public:
  POLYHEAD_INLINE void begin(const KeySet& set) {
    mask_count_ = set.mask_count;
    known_ = true;
    for (int i = 0; i < mask_count_; ++i) count_[i] = 0, known_ = known_ && set.masks[i].blocks != nullptr;
  }

  // Adds consecutive rows to the strip. Rows in the same block of queries have the same kinds of key blocks, which are stored once. If the strip has an empty
  // row that attends to all keys by empty_rows, every block counts as partial, because this row attends to masked keys too.
  POLYHEAD_INLINE void add(const KeySet& set, const Row* rows, int count) {
    for (int r = 0; r < count && set.row_kinds != nullptr; ++r) known_ = known_ && kind_of(set, rows[r]) == RowKind::masked;
    for (int i = 0; i < mask_count_ && known_; ++i) {
      const BooleanMask& mask = set.masks[i];
      const BlockKind* const first = rows_[i][count_[i]++] = blocks_of_query(mask, rows[0].head, rows[0].query);
      const Row& last = rows[count - 1];
      // If the first and the last row lie in the same block of queries, all rows do.
      if (last.head == rows[0].head && blocks_of_query(mask, last.head, last.query) == first) continue;
      for (int r = 1; r < count; ++r) {
        const BlockKind* const blocks = blocks_of_query(mask, rows[r].head, rows[r].query);
        if (rows_[i][count_[i] - 1] != blocks) rows_[i][count_[i]++] = blocks;
      }
    }
  }

  POLYHEAD_INLINE BlockKind at(std::int64_t key) const {
    if (!known_) return BlockKind::partial;
    BlockKind result = BlockKind::full;
    for (int i = 0; i < mask_count_; ++i) {
      BlockKind of_plane = rows_[i][0][key / kMaskBlockKeys];
      for (int j = 1; j < count_[i]; ++j) of_plane = rows_[i][j][key / kMaskBlockKeys] == of_plane ? of_plane : BlockKind::partial;
      result = of_plane < result ? of_plane : result;
    }
    return result;
  }

  // Returns `keys`, relative to key `first`, without the skipped blocks at the beginning and the end.
  POLYHEAD_INLINE KeyRange without_skipped(std::int64_t first, KeyRange keys) const {
    while (!keys.empty() && at(first + keys.first) == BlockKind::skip)
      keys.first = ((first + keys.first) / kMaskBlockKeys + 1) * kMaskBlockKeys - first;
    while (!keys.empty() && at(first + keys.last - 1) == BlockKind::skip)
      keys.last = (first + keys.last - 1) / kMaskBlockKeys * kMaskBlockKeys - first;
    return keys;
  }

 private:
  const BlockKind* rows_[KeySet::kMostMasks][kMostStripRows];
  int count_[KeySet::kMostMasks];
  int mask_count_ = 0;
  bool known_ = false;
};

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
