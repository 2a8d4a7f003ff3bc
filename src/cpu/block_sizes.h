// Sizes of the blocks that attention and gemm loop over. They depend on the caches of the machine.
#pragma once

#include <cstdint>

#include "polyhead/device.h"

namespace polyhead::cpu {

// Returns the bytes of second-level cache for one core, or 1 MiB if the size is unknown. Cores that share a cache get equal shares.
std::int64_t second_cache(const Cpu& cpu);

// Only sizes that do not affect the order of a sum depend on the machine, so that an instruction set gives the same bits on every machine. The sizes of key
// blocks (512 and 256 keys) and of runs of terms in gemm do affect the order, so these are constants. The constants also fix how much of the first-level cache
// is used: a strip's scores are 6 rows x 512 keys x 4 bytes = 12 KiB, and the cache has at least 32 KiB.
struct BlockSizes {
  std::int64_t query_bytes;     // attention: bytes for the queries and the output sums of a query block
  std::int64_t row_bytes;       // gemm: bytes of a in a block of rows
  std::int64_t panel_bytes;     // gemm: bytes of the panels of b that one thread packs and multiplies at once
  std::int64_t prefetch_bytes;  // gemm: if a block of a has at most this many bytes, the next block is prefetched

  // Returns the number of rows of a query block. `width` is the larger of the head widths H (of q and k) and V (of v); `element_bytes` is the size of the
  // compute type.
  std::int64_t query_rows(std::int64_t width, std::int64_t element_bytes) const;
};

// Returns the block sizes for a second-level cache of this size, which is first rounded down to a power of two from 256 KiB to 2 MiB.
BlockSizes block_sizes(std::int64_t second_cache_bytes);

// Returns the block sizes for this machine's cache, or for the machine that a test describes (core/machine.h).
BlockSizes block_sizes();

}  // namespace polyhead::cpu
