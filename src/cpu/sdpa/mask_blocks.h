// For each boolean mask and each block of (query, key) pairs: skip, partial or full. Found once per call, so that a kernel neither computes
// masked blocks nor reads masks of full ones. Sequences, heads and rows that share booleans (stride 0) share answers.
#pragma once

#include <array>

#include "polyhead/tensor.h"
#include "problem/problem.h"

namespace polyhead::cpu {

class MaskBlocks {
 public:
  explicit MaskBlocks(const Problem& problem);  // a problem of one document

  // Sets the block answers of the planes of `set`, which is the key set of sequence b from head first_head on.
  void attach(std::int64_t b, std::int64_t first_head, KeySet& set) const;

 private:
  struct Table {
    Tensor memory;
    ConstTensorView answers;  // [*,N, blocks of queries, blocks of keys]
  };
  std::array<Table, KeySet::kMostPlanes> tables_;
};

}  // namespace polyhead::cpu
