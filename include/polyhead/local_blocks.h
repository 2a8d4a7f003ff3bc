// local_blocks() lists the keys of windows: each window of a sequence, for example 32 queries, attends to the keys around its middle, for example 128. Models
// of molecules attend among atoms in this way: AlphaFold 3 (Abramson et al. 2024, supplementary algorithm 7), Boltz and Protenix.
#pragma once

#include <numeric>
#include <string>

#include "polyhead/error.h"
#include "polyhead/mask.h"
#include "polyhead/tensor.h"

#pragma GCC visibility push(default)
namespace polyhead {

struct LocalBlocks {
  Tensor lists;  // int64 [W, keys / size.keys]: a block list for each of the W = ceil(length / queries) windows
  BlockSize size;

  operator BlockLists() const { return {.lists = lists, .size = size}; }  // The result is a view of `lists`.
};

// Returns the block lists of all windows. With Q = `queries` and K = `keys`, window w has the queries [Q w, Q w + Q), and those of the keys
// [Q w - (K - Q) / 2, Q w + (K + Q) / 2) that lie in [0, length). A block of keys is as large as possible with borders that fit all windows: 16 keys for Q =
// 32, K = 128. Error unless K - Q is even and not negative, and Q positive.
//
//   const LocalBlocks windows = local_blocks(number_of_atoms);
//   sdpa_forward(tensors, {.mask = {.blocks = windows}});
//
// Attention skips keys in groups of 64. It computes all groups that a window touches and masks the pairs outside of the window: a window of 32 x 128 touches up
// to 3 groups, 192 keys. A block list is stored as T x S / (32 x 16) bytes. A bias for sdpa_forward() has T x S numbers for each head. To pass a bias
// [W,N,32,128] that only has the windows' pairs, pass each window as a separate sequence, as polyhead.torch.sequence_local_attention does.
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
