// Blocks of the score matrix that a rank computes at once: a range of its queries with a range of the keys that it holds or has received, in one document.
#pragma once

#include <vector>

#include "distributed/positions.h"
#include "problem/problem.h"

namespace polyhead::distributed {

struct Block {
  KeyRange rows, keys;            // the block's rows in the query tensor and in the key tensor
  std::int64_t query = 0, key = 0;  // positions of the block's first query and first key in the whole sequence
  const Document* document = nullptr;
};

// Returns the blocks in which at least one query attends to a key, by the causal mask, the window, the key starts and the key lengths.
std::vector<Block> blocks_of(const Problem& whole, const std::vector<Positions>& queries, const std::vector<Positions>& keys);

// Returns one block for each document, with all queries and keys of the document.
std::vector<Block> whole_blocks(const Problem& whole);

// Returns the band of a block, relative to the block's first query and key; it is computed from the band of the block's document.
Band band_of_block(const Band& of_document, const Block& block);

// Estimates how many query-key pairs of the blocks lie inside the band. This number times heads and widths is the number of multiply-adds of a forward pass.
double pairs_of(const Problem& whole, const std::vector<Block>& blocks);

}  // namespace polyhead::distributed
