// Windows of a sequence as block lists: the atoms of AlphaFold 3 (Abramson et al. 2024, supplementary algorithm 7), Boltz and Protenix, for which each window of
// 32 queries attends to the 128 keys around its middle.
#pragma once

#include <numeric>
#include <string>

#include "polyhead/error.h"
#include "polyhead/mask.h"
#include "polyhead/tensor.h"

#pragma GCC visibility push(default)
namespace polyhead {

struct LocalBlocks {
  Tensor lists;  // int64 [W, keys / size.keys], W = ceil(length / queries)
  BlockSize size;

  operator BlockLists() const { return {.lists = lists, .size = size}; }  // views `lists`
};

// Returns the block lists of all windows. With Q = `queries` and K = `keys`, window w has the queries [Q w, Q w + Q), and those of the keys
// [Q w - (K - Q) / 2, Q w + (K + Q) / 2) that lie in [0, length). Blocks of keys are as large as all windows allow: 16 keys for Q = 32, K = 128. Error unless K - Q
// is even and not negative, and Q positive.
//
//   const LocalBlocks windows = local_blocks(atoms);
//   sdpa_forward(tensors, {.mask = {.blocks = windows}});
//
// Attention skips keys in groups of 64, so it computes the groups that a window touches, and masks the pairs outside of the window: a window of 32 x 128 touches up
// to 3 groups, 192 keys. A block list is stored as T x S / (32 x 16) bytes. A bias of sdpa has T x S numbers for each head;
// for a bias [W,N,32,128] of the windows' pairs alone, pass each window as a sequence of its own, as polyhead.torch.sequence_local_attention does.
inline LocalBlocks local_blocks(std::int64_t length, std::int64_t queries = 32, std::int64_t keys = 128) {
  if (length < 0 || queries < 1 || keys < queries || (keys - queries) % 2 != 0) {
    throw Error(ErrorCode::invalid_argument, "local_blocks: length = " + std::to_string(length) + ", queries = " + std::to_string(queries) + " and keys = " + std::to_string(keys) +
                "; keys - queries must be even and not negative, queries positive and length not negative");
  }
  const std::int64_t before = (keys - queries) / 2, block = std::gcd(queries, before), count = keys / block, windows = length / queries + (length % queries != 0 ? 1 : 0);
  LocalBlocks result{.lists = Tensor(DType::i64, {windows, count}), .size = {.queries = queries, .keys = block}};
  std::int64_t* at = result.lists.data<std::int64_t>();
  for (std::int64_t w = 0; w < windows; ++w) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t first = w * queries - before + i * block;
      *at++ = first >= 0 && first < length ? first / block : -1;
    }
  }
  return result;
}

}  // namespace polyhead
#pragma GCC visibility pop
