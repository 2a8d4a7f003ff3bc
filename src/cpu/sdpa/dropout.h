// Computes the keep bits of dropout for many keys at a time. They equal the bits of DropoutBits (core/philox.h), which computes one PhiloxBlock at a time. Only
// kernel sources (*_kernel.cc) include this file.
#pragma once

#include "cpu/sdpa/rows.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// Philox 4x32-10 (Salmon et al. 2011). Each 64-bit lane holds one 32-bit word in its lower half. The upper half may hold anything, because products read only
// lower halves. So no instruction is needed to move words between lanes. Four vectors of counters are computed at once, so that the processor need not wait for
// each product.
inline constexpr int kPhiloxVectors = 4, kPhiloxLanes = kLanes<std::int64_t>;
inline constexpr std::int64_t kPhiloxKeys = 4 * kPhiloxVectors * kPhiloxLanes;  // number of keys for which one call of philox_bytes() computes the bits
using Words = Vector<std::int64_t>;

POLYHEAD_INLINE Words upper_half(Words x) {
  typedef std::uint64_t Unsigned __attribute__((vector_size(POLYHEAD_VECTOR_BYTES)));
  return (Words)((Unsigned)x >> 32);
}

// Sets to[4 i + j] to 1 if word j of Philox for the counter (block + i, rest) is at least `below`, else to 0.
POLYHEAD_INLINE void philox_bytes(std::uint32_t block, const std::uint32_t (&rest)[3], const std::uint32_t (&seed)[2], std::int64_t below, std::uint8_t* to) {
  Words c[4][kPhiloxVectors], number{};
#pragma GCC unroll 8
  for (int lane = 0; lane < kPhiloxLanes; ++lane) number[lane] = lane;
#pragma GCC unroll 4
  for (int i = 0; i < kPhiloxVectors; ++i) {
    c[0][i] = number + (std::int64_t{block} + i * kPhiloxLanes);
#pragma GCC unroll 4
    for (int j = 1; j < 4; ++j) c[j][i] = Words{} + rest[j - 1];
  }
  const Words factors[2] = {Words{} + 0xD2511F53, Words{} + 0xCD9E8D57};
  std::uint32_t key[2] = {seed[0], seed[1]};
#pragma GCC unroll 1
  for (int round = 0; round < 10; ++round) {
    const Words keys[2] = {Words{} + key[0], Words{} + key[1]};
#pragma GCC unroll 4
    for (int i = 0; i < kPhiloxVectors; ++i) {
      const Words a = multiply_words(c[0][i], factors[0]), b = multiply_words(c[2][i], factors[1]);
      c[0][i] = upper_half(b) ^ c[1][i] ^ keys[0], c[1][i] = b;
      c[2][i] = upper_half(a) ^ c[3][i] ^ keys[1], c[3][i] = a;
    }
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
#pragma GCC unroll 4
  for (int i = 0; i < kPhiloxVectors; ++i) {
    Words bytes{};
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) bytes |= ((c[j][i] & 0xffffffff) >= below) & (std::int64_t{1} << (8 * j));
    typedef std::uint32_t Narrow __attribute__((vector_size(POLYHEAD_VECTOR_BYTES / 2)));
    const Narrow packed = __builtin_convertvector(bytes, Narrow);
    __builtin_memcpy(to + 4 * i * kPhiloxLanes, &packed, sizeof packed);
  }
}

// Returns an array `keep` with keep[i] != 0 if dropout keeps key first + i, for i in [low, high). `to` is scratch with room for kKeepMargin bytes after `high`.
// One counter gives the bits of four keys. Counters contain positions in the packed sequence, so the bits of a document depend on its position in that
// sequence.
inline constexpr std::int64_t kKeepMargin = kPhiloxKeys + 4;
inline const std::uint8_t* keep_bytes(const HeadGroup& group, const Row& row, std::int64_t first, std::int64_t low, std::int64_t high, std::uint8_t* to) {
  if (group.keep.data != nullptr) return row_bytes(group.keep, row, first, low, high, to);
  const std::uint32_t rest[3] = {static_cast<std::uint32_t>(group.dropout_query + row.query),
                                 group.first_head + static_cast<std::uint32_t>(row.head), group.batch_index};
  const std::int64_t key = group.dropout_key + first, before = key % 4;
  for (std::int64_t i = (low + before) / 4 * 4; i < high + before; i += kPhiloxKeys) {
    philox_bytes(static_cast<std::uint32_t>((key - before + i) / 4), rest, group.seed, static_cast<std::int64_t>(group.drop_below), to + i);
  }
  return to + before;
}

// Multiplies the row's values at the keys `own`, which the row attends to, by 1/(1 - p) where dropout keeps the pair, and by 0 where it drops the pair.
template <class T>
void drop_keys(const HeadGroup& group, const std::uint8_t* keep, KeyRange own, T* values) {
  const T kept = static_cast<T>(group.dropout_scale);
  for (std::int64_t i = own.first; i < own.last; ++i) values[i] = keep[i] != 0 ? values[i] * kept : T{0};
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
