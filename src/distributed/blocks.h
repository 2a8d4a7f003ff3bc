// Blocks of the score matrix that a rank computes at once: a range of its queries with a range of the keys that it holds or has received, in one document.
#pragma once

#include <vector>

#include "distributed/positions.h"
#include "problem/problem.h"

namespace polyhead::distributed {

struct Block {
  KeyRange rows, keys;            // row ranges in the tensors of queries, and of keys
  std::int64_t query = 0, key = 0;  // positions of the first query and of the first key
  const Document* document = nullptr;
};

// Returns the blocks in which causal, window, key starts and key lengths leave at least one pair.
std::vector<Block> blocks_of(const Problem& whole, const std::vector<Positions>& queries, const std::vector<Positions>& keys);

// Returns one block for each document; for a rank that has all queries and keys.
std::vector<Block> whole_blocks(const Problem& whole);

// Returns the band of a block, computed from the band of its document.
Band band_of_block(const Band& of_document, const Block& block);

// Estimates how many pairs of the blocks the band does not mask. This number times heads and widths is the number of multiply-adds of a forward pass.
double pairs_of(const Problem& whole, const std::vector<Block>& blocks);

}  // namespace polyhead::distributed
