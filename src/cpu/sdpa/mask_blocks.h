// Analyses the boolean masks once for each call. It finds which blocks of (query, key) pairs a mask skips, allows in part or allows completely, so
// that kernels neither compute masked blocks nor read masks of full ones. It also finds the empty rows that SdpaOptions::empty_rows fills. Sequences,
// heads and rows that share booleans (stride 0) share blocks.
#pragma once

#include <vector>

#include "polyhead/tensor.h"
#include "problem/problem.h"

namespace polyhead::cpu {

class MaskBlocks {
 public:
  explicit MaskBlocks(const Problem& problem);  // the problem has one document

  // Sets the blocks of the masks and the row kinds of `set`, which is the key set of the heads that share key/value head kv.
  void attach(std::int64_t b, std::int64_t kv, KeySet& set) const;

 private:
  struct Table {
    Tensor memory;
    ConstTensorView blocks;  // [*,N, blocks of queries, blocks of keys]
  };
  static Table kinds_of_lists(const Problem& problem, int mask);

  std::vector<Table> tables_;
  std::int64_t group_ = 0, kv_heads_ = 0;  // query heads of a key/value head; key/value heads
  std::vector<RowKind> kinds_;             // [*,N,T]; empty if no row can be filled
  std::vector<std::uint8_t> filled_;       // [*,K]: 1 if a row of the group is filled
};

// The kind of a row: masked, or the kind that `mode` gives to an empty row.
RowKind row_kind(const KeySet& set, EmptyRows mode, std::int64_t head, std::int64_t t);

// Finds the kind of each row [heads, queries]: masked, or the kind that `mode` gives to an empty row. Returns whether any row is empty.
bool find_row_kinds(const KeySet& set, EmptyRows mode, std::int64_t heads, RowKind* kinds);

}  // namespace polyhead::cpu
