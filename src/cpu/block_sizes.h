// Sizes of blocks that follow the caches of the machine.
#pragma once

#include <cstdint>

#include "polyhead/device.h"

namespace polyhead::cpu {

// Bytes of second-level cache for one core: a cache that several cores share counts in equal shares. 1 MiB where it is not known.
std::int64_t second_cache(const Cpu& cpu);

// Only sizes that have no share in the order of a sum are here: rows of a block, and what is packed or prefetched together. One instruction set
// gives the same bits on every machine, so key blocks (512 and 256 keys), runs of terms in gemm and the number of key splits are constants.
// What lives in the first-level cache follows from them: a strip's scores, 6 rows x 512 keys x 4 bytes = 12 KiB of at least 32.
struct BlockSizes {
  std::int64_t query_bytes;     // attention: queries and output sums of a block of rows
  std::int64_t row_bytes;       // gemm: a block's rows of a
  std::int64_t panel_bytes;     // gemm: panels of b that one thread packs and multiplies at once
  std::int64_t prefetch_bytes;  // gemm: a block of a up to this size has the next block prefetched

  // Rows of queries of a block; `width`: the larger of H and V, `element_bytes`: of the arithmetic.
  std::int64_t query_rows(std::int64_t width, std::int64_t element_bytes) const;
};

// For a second-level cache of so many bytes. Powers of two from 256 KiB to 2 MiB are told apart.
BlockSizes block_sizes(std::int64_t second_cache_bytes);

// Those of this machine, or of the bytes that were set: 0 returns to the machine's. Set for tests, not while an operation runs.
BlockSizes block_sizes();
void set_second_cache(std::int64_t bytes);

}  // namespace polyhead::cpu
