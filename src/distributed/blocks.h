// Blocks of the score matrix that a rank computes at once: a range of its queries with a range of the keys at hand, in one document.
#pragma once

#include <vector>

#include "distributed/positions.h"
#include "problem/problem.h"

namespace polyhead::distributed {

struct Block {
  KeyRange rows, keys;            // rows of the tensors of queries, and of those of keys
  std::int64_t query = 0, key = 0;  // the positions of the first of each
  const Document* document = nullptr;
};

// Blocks with at least one pair that causal, window and the lengths of sequences do not mask.
std::vector<Block> blocks_of(const Problem& whole, const std::vector<Positions>& queries, const std::vector<Positions>& keys);

// The documents as blocks, where a rank has all queries and keys.
std::vector<Block> whole_blocks(const Problem& whole);

// The band of a block, from that of its document.
Band band_of_block(const Band& of_document, const Block& block);

// Multiply-adds of a forward pass of a block, for each head and width; pairs that the band leaves, about.
double pairs_of(const Problem& whole, const std::vector<Block>& blocks);

}  // namespace polyhead::distributed
