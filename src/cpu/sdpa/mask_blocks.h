// What each boolean plane of a mask says about blocks of pairs: skip, partial or full. Read from the booleans once per call, so that a mask
// costs what its shape costs. Sequences, heads and rows that share booleans share answers.
#pragma once

#include <array>

#include "polyhead/tensor.h"
#include "problem/problem.h"

namespace polyhead::cpu {

class MaskBlocks {
 public:
  explicit MaskBlocks(const Problem& problem);  // of one document

  // Gives the planes of sequence b's key set, whose heads begin with first_head, their answers.
  void attach(std::int64_t b, std::int64_t first_head, KeySet& set) const;

 private:
  struct Table {
    Tensor memory;
    ConstTensorView answers;  // [*,N, blocks of queries, blocks of keys]
  };
  std::array<Table, KeySet::kMostPlanes> tables_;
};

}  // namespace polyhead::cpu
