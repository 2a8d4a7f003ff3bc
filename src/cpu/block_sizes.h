// Block sizes that depend on the caches of the machine.
#pragma once

#include <cstdint>

#include "polyhead/device.h"

namespace polyhead::cpu {

// Bytes of second-level cache for one core: cores that share a cache get equal shares. 1 MiB if unknown.
std::int64_t second_cache(const Cpu& cpu);

// Sizes that do not affect the order of a sum, so that an instruction set gives the same bits on every machine. Key blocks (512 and 256 keys) and
// runs of terms in gemm do affect the order and are constants. These constants also fix how much of the first-level cache is used: a strip's scores
// are 6 rows x 512 keys x 4 bytes = 12 KiB, and the cache has at least 32 KiB.
struct BlockSizes {
  std::int64_t query_bytes;     // attention: queries and output sums of a query block
  std::int64_t row_bytes;       // gemm: a block's rows of a
  std::int64_t panel_bytes;     // gemm: panels of b that one thread packs and multiplies at once
  std::int64_t prefetch_bytes;  // gemm: if a block of a has at most this size, the next block is prefetched

  // Rows of a query block. `width`: the larger of the head widths H and V; `element_bytes`: size of the compute type.
  std::int64_t query_rows(std::int64_t width, std::int64_t element_bytes) const;
};

// Block sizes for a second-level cache of this size, which is rounded down to a power of two from 256 KiB to 2 MiB.
BlockSizes block_sizes(std::int64_t second_cache_bytes);

// Block sizes for this machine's cache, or for the one that a test describes (core/machine.h).
BlockSizes block_sizes();

}  // namespace polyhead::cpu
