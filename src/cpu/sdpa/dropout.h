// The keep bits of dropout, many keys at a time: the same as core/philox.h draws one by one. For kernel sources only.
#pragma once

#include "cpu/sdpa/rows.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// Philox 4x32-10 (Salmon et al. 2011) of kBlocks counters that follow each other, keys side by side: 64 keys in lockstep fill the vectors of
// any instruction set.
inline constexpr int kPhiloxBlocks = 16;

POLYHEAD_INLINE void philox_words(std::uint32_t block, const std::uint32_t (&rest)[3], const std::uint32_t (&seed)[2], std::uint32_t* words) {
  std::uint32_t c[4][kPhiloxBlocks];
  for (int i = 0; i < kPhiloxBlocks; ++i) {
    c[0][i] = block + static_cast<std::uint32_t>(i);
    c[1][i] = rest[0], c[2][i] = rest[1], c[3][i] = rest[2];
  }
  std::uint32_t key[2] = {seed[0], seed[1]};
#pragma GCC unroll 1
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kPhiloxBlocks; ++i) {
      const std::uint64_t a = std::uint64_t{0xD2511F53u} * c[0][i], b = std::uint64_t{0xCD9E8D57u} * c[2][i];
      const std::uint32_t x = static_cast<std::uint32_t>(b >> 32) ^ c[1][i] ^ key[0], y = static_cast<std::uint32_t>(a >> 32) ^ c[3][i] ^ key[1];
      c[0][i] = x, c[1][i] = static_cast<std::uint32_t>(b), c[2][i] = y, c[3][i] = static_cast<std::uint32_t>(a);
    }
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  for (int i = 0; i < kPhiloxBlocks; ++i) {
    for (int j = 0; j < 4; ++j) words[4 * i + j] = c[j][i];
  }
}

// keep[i] != 0 where dropout keeps key first + i, for i in [low, high). first is a multiple of 4 kPhiloxBlocks; `to` and `words` are scratch.
inline const std::uint8_t* keep_bytes(const HeadGroup& group, const Row& row, std::int64_t first, std::int64_t low, std::int64_t high, std::uint8_t* to) {
  if (group.keep.data != nullptr) return row_bytes(group.keep, row, first, low, high, to);
  constexpr std::int64_t kStep = 4 * kPhiloxBlocks;
  const std::uint32_t rest[3] = {static_cast<std::uint32_t>(row.query), group.first_head + static_cast<std::uint32_t>(row.head), group.batch_index};
  const std::uint32_t below = static_cast<std::uint32_t>(group.drop_below);
  const bool all = group.drop_below >> 32 != 0;
  for (std::int64_t i = low / kStep * kStep; i < high; i += kStep) {
    std::uint32_t words[kStep];
    philox_words(static_cast<std::uint32_t>((first + i) / 4), rest, group.seed, words);
    for (int j = 0; j < kStep; ++j) to[i + j] = !all && words[j] >= below;
  }
  return to;
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
