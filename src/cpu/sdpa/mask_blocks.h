// MaskBlocks analyses the boolean masks of a call once. For each block of (query, key) pairs it finds whether a mask allows none, some or all pairs. Kernels then
// skip blocks without allowed pairs, and do not read the mask of blocks in which all pairs are allowed. The class also finds the empty rows that attend to all keys
// by SdpaOptions::empty_rows. Sequences, heads and rows that share booleans (stride 0) share the results.
#pragma once

#include <vector>

#include "polyhead/tensor.h"
#include "problem/problem.h"

namespace polyhead::cpu {

class MaskBlocks {
 public:
  explicit MaskBlocks(const Problem& problem);  // the problem must have exactly one document

  // Sets the blocks of the masks and the row kinds in `set`, which is the key set of the heads that share key/value head kv of sequence b.
  void attach(std::int64_t b, std::int64_t kv, KeySet& set) const;

 private:
  struct Table {
    Tensor memory;
    ConstTensorView blocks;  // kinds of blocks [*,N, blocks of queries, blocks of keys]
  };
  static Table kinds_of_lists(const Problem& problem, int mask);

  std::vector<Table> tables_;
  std::int64_t group_ = 0, kv_heads_ = 0;  // number of query heads for each key/value head, and number of key/value heads
  std::vector<RowKind> kinds_;             // kind of each row [*,N,T]; empty if no row can be uniform or unmasked (RowKind)
  std::vector<std::uint8_t> filled_;       // for each key/value head [*,K]: 1 if a row of its query heads is of kind `uniform` or `unmasked`
};

// Returns the kind of a row: RowKind::masked, or for an empty row the kind that `mode` sets.
RowKind row_kind(const KeySet& set, EmptyRows mode, std::int64_t head, std::int64_t t);

// Writes the kind of each row to kinds [heads, queries]: RowKind::masked, or for an empty row the kind that `mode` sets. Returns whether any row is empty.
bool find_row_kinds(const KeySet& set, EmptyRows mode, std::int64_t heads, RowKind* kinds);

}  // namespace polyhead::cpu
