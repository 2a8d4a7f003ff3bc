#include "cpu/block_sizes.h"

#include <algorithm>
#include <bit>

#include "cpu/caches.h"

namespace polyhead::cpu {

std::int64_t second_cache(const Cpu& cpu) {
  std::int64_t bytes = 1 << 20;
  int shared_by = 1, threads = 1;  // how many logical processors share the second-level cache, and how many share a core
  for (const CpuCache& cache : cpu.caches) {
    if (cache.kind == "instruction") continue;
    if (cache.level == 1) threads = std::max(1, cache.shared_by);
    if (cache.level == 2 && cache.bytes > 0) bytes = cache.bytes, shared_by = std::max(1, cache.shared_by);
  }
  return bytes / std::max(1, shared_by / threads);
}

std::int64_t BlockSizes::query_rows(std::int64_t width, std::int64_t element_bytes) const {
  const std::int64_t bytes = width * element_bytes, row = bytes <= 256 ? 256 : bytes <= 512 ? 512 : 1024;
  return query_bytes / (2 * row);
}

BlockSizes block_sizes(std::int64_t second_cache_bytes) {
  const auto power = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(std::clamp<std::int64_t>(second_cache_bytes, 256 << 10, 2 << 20))));
  const std::int64_t share = power / 128;
  return {.query_bytes = 48 * share, .row_bytes = 50 * share, .panel_bytes = 32 * share, .prefetch_bytes = 25 * share};
}

BlockSizes block_sizes() {
  if (const DescribedMachine* machine = described_machine()) return block_sizes(second_cache({.caches = caches_of(*machine)}));
  static const std::int64_t bytes = second_cache(detect_cpu());
  return block_sizes(bytes);
}

}  // namespace polyhead::cpu
