#include "distributed/blocks.h"

#include <algorithm>

namespace polyhead::distributed {
namespace {

Positions both(const Positions& a, const KeyRange& b) { return {std::max(a.first, b.first), std::min(a.last, b.last)}; }

// Removes keys at both ends of the block that no query of the block attends to. Returns false if no key is left. If sequences have bands of their own
// (KeyRules::bands), the document's band encloses all of them.
bool narrow(const Problem& whole, Block& block) {
  const std::int64_t queries = block.rows.last - block.rows.first, keys = block.keys.last - block.keys.first;
  const KeyRules& rules = *whole.rules;
  KeyRange left{0, keys};
  if (rules.banded) {
    const Band band = band_of_block(block.document->band, block);
    if (band.lower >= band.upper) return false;
    // Query t of the block attends to its keys [t + lower, t + upper).
    left = {std::max<std::int64_t>(0, band.lower), std::min(keys, queries - 1 + band.upper)};
  }
  if (!rules.ranges.empty() && !rules.range_per_query) {
    const std::int64_t first = std::ranges::min(rules.ranges, {}, &KeyRange::first).first, last = std::ranges::max(rules.ranges, {}, &KeyRange::last).last;
    left = {std::max(left.first, first - block.key), std::min(left.last, last - block.key)};
  }
  if (left.empty()) return false;
  block.key += left.first;
  block.keys = {block.keys.first + left.first, block.keys.first + left.last};
  return true;
}

}  // namespace

Band band_of_block(const Band& band, const Block& block) {
  const std::int64_t queries = block.rows.last - block.rows.first, keys = block.keys.last - block.keys.first;
  const std::int64_t shift = (block.query - block.document->queries.first) - (block.key - block.document->keys.first);
  return {.lower = std::clamp(band.lower + shift, -queries, keys), .upper = std::clamp(band.upper + shift, -queries, keys), .diagonal = 0, .distance_origin = band.distance_origin - shift};
}

std::vector<Block> blocks_of(const Problem& whole, const std::vector<Positions>& queries, const std::vector<Positions>& keys) {
  std::vector<Block> blocks;
  std::int64_t row = 0;
  for (const Positions& of_queries : queries) {
    std::int64_t key_row = 0;
    for (const Positions& of_keys : keys) {
      for (const Document& document : whole.documents) {
        const Positions t = both(of_queries, document.queries), s = both(of_keys, document.keys);
        if (t.count() <= 0 || s.count() <= 0) continue;
        Block block{{row + t.first - of_queries.first, row + t.last - of_queries.first}, {key_row + s.first - of_keys.first, key_row + s.last - of_keys.first}, t.first, s.first, &document};
        if (narrow(whole, block)) blocks.push_back(block);
      }
      key_row += of_keys.count();
    }
    row += of_queries.count();
  }
  return blocks;
}

std::vector<Block> whole_blocks(const Problem& whole) {
  std::vector<Block> blocks;
  for (const Document& document : whole.documents) blocks.push_back({document.queries, document.keys, document.queries.first, document.keys.first, &document});
  return blocks;
}

double pairs_of(const Problem& whole, const std::vector<Block>& blocks) {
  double pairs = 0;
  for (const Block& block : blocks) {
    const std::int64_t queries = block.rows.last - block.rows.first, keys = block.keys.last - block.keys.first;
    const Band band = whole.rules->banded ? band_of_block(block.document->band, block) : Band{.lower = -queries, .upper = keys};
    constexpr std::int64_t kSamples = 32;
    double of_block = 0;
    for (std::int64_t i = 0; i < kSamples; ++i) {
      const std::int64_t t = queries * i / kSamples;
      of_block += static_cast<double>(std::max<std::int64_t>(0, std::min(keys, t + band.upper) - std::max<std::int64_t>(0, t + band.lower)));
    }
    pairs += of_block / kSamples * static_cast<double>(queries);
  }
  return pairs;
}

}  // namespace polyhead::distributed
