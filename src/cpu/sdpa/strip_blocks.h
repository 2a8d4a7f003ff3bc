// Whether a block of keys is skip, partial or full for all rows of a strip together. For kernel sources only.
#pragma once

#include "cpu/sdpa/rows.h"
#include "cpu/tile.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// A tile must lie in one column of blocks, or an answer would hold for some of its keys only.
static_assert(kPairBlockKeys % kPanelKeys<float> == 0 && kPairBlockKeys % kPanelKeys<double> == 0);

class StripBlocks {
 public:
  POLYHEAD_INLINE void begin(const KeySet& set) {
    planes_ = set.plane_count;
    known_ = set.row_kinds == nullptr;
    for (int i = 0; i < planes_; ++i) count_[i] = 0, known_ = known_ && set.planes[i].blocks != nullptr;
  }

  // Rows of one block of queries have the same list of answers, which is stored once.
  POLYHEAD_INLINE void add(const KeySet& set, const Row& row) {
    for (int i = 0; i < planes_ && known_; ++i) {
      const PairBlock* const blocks = answers(set.planes[i], row.head, row.query);
      if (count_[i] == 0 || rows_[i][count_[i] - 1] != blocks) rows_[i][count_[i]++] = blocks;
    }
  }

  POLYHEAD_INLINE PairBlock at(std::int64_t key) const {
    if (!known_) return PairBlock::partial;
    PairBlock result = PairBlock::full;
    for (int i = 0; i < planes_; ++i) {
      PairBlock of_plane = rows_[i][0][key / kPairBlockKeys];
      for (int j = 1; j < count_[i]; ++j) of_plane = rows_[i][j][key / kPairBlockKeys] == of_plane ? of_plane : PairBlock::partial;
      result = of_plane < result ? of_plane : result;
    }
    return result;
  }

  // `keys`, relative to key `first`, without the skipped blocks at both ends.
  POLYHEAD_INLINE KeyRange without_skipped(std::int64_t first, KeyRange keys) const {
    while (!keys.empty() && at(first + keys.first) == PairBlock::skip) keys.first = ((first + keys.first) / kPairBlockKeys + 1) * kPairBlockKeys - first;
    while (!keys.empty() && at(first + keys.last - 1) == PairBlock::skip) keys.last = (first + keys.last - 1) / kPairBlockKeys * kPairBlockKeys - first;
    return keys;
  }

 private:
  const PairBlock* rows_[KeySet::kMostPlanes][2 * kTileRows];
  int count_[KeySet::kMostPlanes];
  int planes_ = 0;
  bool known_ = false;
};

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
