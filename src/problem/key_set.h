// KeySet says which keys each query may attend to: a key range for each query, boolean masks over pairs, and for each block of pairs whether kernels can
// skip the block. The backend `reference` and the kernels of every instruction set read a KeySet.
#pragma once

#include <cstdint>

#include "core/inline.h"

namespace polyhead {

// The keys first, first + 1, ..., last - 1. The range is empty if last <= first.
struct KeyRange {
  std::int64_t first, last;
  POLYHEAD_INLINE bool empty() const { return last <= first; }
};

// The kind of a block of pairs: whether a boolean mask allows none (skip), some (partial) or all (full) of its pairs. With several masks, a block has the
// smallest kind that any mask gives it. Then a partial block may allow no pair, if its masks allow different pairs; this costs only time.
enum class BlockKind : std::uint8_t { skip, partial, full };

// Size of a block of pairs. A kernel's tile of scores never crosses a multiple of 64 keys, so the tile's keys belong to one column of blocks.
inline constexpr std::int64_t kMaskBlockQueries = 16, kMaskBlockKeys = 64;

// A boolean mask, stored as bytes [head, query, key] with any strides. A query may attend to a key if (byte != 0) == attend. If listed_queries > 0
// (Mask::blocks), there is instead one byte for each block of listed_queries x listed_keys pairs: pair (t, s) uses byte [head, (t + query_position) /
// listed_queries, (s + key_position) / listed_keys].
struct BooleanMask {
  const std::uint8_t* data = nullptr;
  std::int64_t head = 0, row = 0, column = 0;
  bool attend = true;
  const BlockKind* blocks = nullptr;  // kinds of blocks [head, block of queries, block of keys]; nullptr: every block is partial
  std::int64_t block_head = 0, block_row = 0;
  std::int64_t listed_queries = 0, listed_keys = 0, query_position = 0, key_position = 0;

  POLYHEAD_INLINE bool listed() const { return listed_queries > 0; }
  POLYHEAD_INLINE std::int64_t row_of_query(std::int64_t t) const { return listed() ? (t + query_position) / listed_queries : t; }
  POLYHEAD_INLINE std::int64_t column_of_key(std::int64_t s) const { return listed() ? (s + key_position) / listed_keys : s; }
};

// masked: the row attends to the keys that the mask allows. If the mask allows none, SdpaOptions::empty_rows may let the row attend to all keys: with equal
// scores (uniform) or with its computed scores (unmasked). If all rows of a set are masked, KeySet::row_kinds is nullptr.
enum class RowKind : std::uint8_t { masked, uniform, unmasked };

// The keys that each query may attend to, for some heads of one sequence or document. Heads, queries and keys are counted from the first head, query and key of
// the set.
struct KeySet {
  static constexpr int kMostMasks = 3;

  std::int64_t queries = 0, keys = 0;
  bool banded = false;
  std::int64_t lower = 0, upper = 0;       // used if `banded`: query t may attend only to keys in [t + lower, t + upper)
  // Query t may attend only to keys in ranges[t], or in ranges[0] if there is one range for all queries. nullptr: no such restriction.
  const KeyRange* ranges = nullptr;
  bool range_per_query = false;
  // position of key 0 in the packed sequence; the numbers in `ranges` are positions in the packed sequence
  std::int64_t key_position = 0;
  BooleanMask masks[kMostMasks];
  int mask_count = 0;
  const RowKind* row_kinds = nullptr;      // kinds of rows [head, query]; nullptr: every row is masked

  POLYHEAD_INLINE bool ranged() const { return banded || ranges != nullptr; }  // false: key_range() returns all keys for every query
};

// Returns the range of keys that the causal mask, the window, the key starts and the key lengths allow query t to attend to.
POLYHEAD_INLINE KeyRange key_range(const KeySet& set, std::int64_t t) {
  KeyRange range{0, set.keys};
  if (set.banded) {
    const std::int64_t first = t + set.lower, last = t + set.upper;
    range = {first > 0 ? first : 0, last < set.keys ? last : set.keys};
  }
  if (set.ranges != nullptr) {
    const KeyRange own = set.ranges[set.range_per_query ? t : 0];
    const std::int64_t first = own.first - set.key_position, last = own.last - set.key_position;
    range = {first > range.first ? first : range.first, last < range.last ? last : range.last};
  }
  return range;
}

// Returns whether the boolean masks let query t of the head attend to key s.
POLYHEAD_INLINE bool masks_attend(const KeySet& set, std::int64_t head, std::int64_t t, std::int64_t s) {
  for (int i = 0; i < set.mask_count; ++i) {
    const BooleanMask& mask = set.masks[i];
    if ((mask.data[head * mask.head + mask.row_of_query(t) * mask.row + mask.column_of_key(s) * mask.column] != 0) != mask.attend) return false;
  }
  return true;
}

// Returns the kinds of the blocks to which query t belongs: key s lies in block s / kMaskBlockKeys of the result. nullptr: every block is partial. A block has
// listed_queries queries if the mask holds listed blocks (Mask::blocks), else kMaskBlockQueries.
POLYHEAD_INLINE const BlockKind* blocks_of_query(const BooleanMask& mask, std::int64_t head, std::int64_t t) {
  return mask.blocks == nullptr ? nullptr : mask.blocks + head * mask.block_head + (mask.listed() ? mask.row_of_query(t) : t / kMaskBlockQueries) * mask.block_row;
}

// Returns `range` without the blocks of kind BlockKind::skip at its beginning and its end.
POLYHEAD_INLINE KeyRange without_skipped_ends(const KeySet& set, std::int64_t head, std::int64_t t, KeyRange range) {
  for (int i = 0; i < set.mask_count; ++i) {
    const BlockKind* const blocks = blocks_of_query(set.masks[i], head, t);
    if (blocks == nullptr) continue;
    while (!range.empty() && blocks[range.first / kMaskBlockKeys] == BlockKind::skip)
      range.first = (range.first / kMaskBlockKeys + 1) * kMaskBlockKeys;
    while (!range.empty() && blocks[(range.last - 1) / kMaskBlockKeys] == BlockKind::skip)
      range.last = (range.last - 1) / kMaskBlockKeys * kMaskBlockKeys;
  }
  return range;
}

}  // namespace polyhead
