// Packs columns of b into AMX tiles. A tile is 1 KiB and holds 16 pairs of terms of 16 columns. A panel has 32 columns, so a block of terms of a panel is two
// tiles. The order in memory is [panel, block of terms, tile of the panel, pair, column]. Terms and columns after the last one are 0. Only kernel sources
// (*_kernel.cc) include this file.
#pragma once

#include "cpu/gemm/operand.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

inline constexpr int kTileTerms = 32, kTileColumns = 16, kTilePairs = 16;  // a pair holds two terms
inline constexpr std::int64_t kTileBytes = 1024;
inline constexpr int kTilesOfPanel = 2, kTilePanelColumns = kTilesOfPanel * kTileColumns;
inline constexpr std::int64_t kPanelBlockBytes = kTilesOfPanel * kTileBytes;

POLYHEAD_INLINE std::int64_t term_blocks(std::int64_t terms) { return (terms + kTileTerms - 1) / kTileTerms; }

// Returns the address of the tiles of the block of terms that begins with `term`.
POLYHEAD_INLINE char* packed_tiles_at(const PackedColumns& b, std::int64_t panel, std::int64_t term) {
  const std::int64_t block = (panel - b.first_panel) * term_blocks(b.terms.last - b.terms.first) + (term - b.terms.first) / kTileTerms;
  return static_cast<char*>(b.panels) + block * kPanelBlockBytes;
}

// Returns a vector of `count` adjacent bfloat16 numbers, two in each lane, followed by zeros.
POLYHEAD_INLINE Vector<std::int32_t> load_pairs(const bf16* from, int count) {
  Vector<std::int32_t> pairs{};
  if (count == kTileTerms) {
    __builtin_memcpy(&pairs, from, sizeof pairs);
  } else {
    bf16 padded[kTileTerms] = {};
    for (int i = 0; i < count; ++i) padded[i] = from[i];
    __builtin_memcpy(&pairs, padded, sizeof pairs);
  }
  return pairs;
}

// Returns a vector of `count` adjacent bfloat16 numbers, one in each lane, followed by zeros.
POLYHEAD_INLINE Vector<std::int32_t> load_halves(const bf16* from, int count) {
  if (count == kTileColumns) return load_shorts(&from->bits);
  std::int32_t padded[kTileColumns] = {};
  for (int i = 0; i < count; ++i) padded[i] = from[i].bits;
  return load_vector(padded);
}

// Packs a tile of b if the terms of a column are adjacent in memory, as in the weight [out,in] of y = x W^T. Two adjacent terms are a pair already, so the tile
// is transposed as 32-bit words.
inline void pack_tile_of_adjacent_terms(const GemmTask& task, const bf16* b, std::int64_t column, int columns, std::int64_t term, int terms, Bf16Pair* to) {
  constexpr int kAhead = 8 * kTileTerms;
  Vector<std::int32_t> x[kTileColumns];
  b += offset_of(task.b_depth, term);
  for (int j = 0; j < kTileColumns; ++j) {
    if (j < columns) {
      const bf16* const from = b + offset_of(task.b_columns, column + j);
      __builtin_prefetch(from + kAhead);
      x[j] = load_pairs(from, terms);
    } else {
      x[j] = Vector<std::int32_t>{};
    }
  }
  transpose<std::int32_t>(x);
  for (int i = 0; i < kTilePairs; ++i) store_vector<std::int32_t>(x[i], &to[i * kTileColumns].bits);
}

// Packs a tile of b if the elements of a row are adjacent in memory, as in the weight of d_x = d_y W. Two rows of b are interleaved, which gives the pairs of
// two terms.
inline void pack_tile_of_adjacent_columns(const GemmTask& task, const bf16* b, std::int64_t column, int columns, std::int64_t term, int terms, Bf16Pair* to) {
  b += offset_of(task.b_columns, column);
  for (int k = 0; k < kTileTerms; k += 2, to += kTileColumns) {
    Vector<std::int32_t> pairs{};
    if (k < terms) pairs = load_halves(b + offset_of(task.b_depth, term + k), columns);
    if (k + 1 < terms) pairs |= load_halves(b + offset_of(task.b_depth, term + k + 1), columns) << 16;
    store_vector<std::int32_t>(pairs, &to->bits);
  }
}

inline void pack_tile_by_elements(const GemmTask& task, const bf16* b, std::int64_t column, int columns, std::int64_t term, int terms, Bf16Pair* to) {
  const auto at = [&](int k, int j) __attribute__((always_inline)) {
    return k < terms && j < columns ? b[offset_of(task.b_depth, term + k) + offset_of(task.b_columns, column + j)] : bf16{};
  };
  for (int k = 0; k < kTileTerms; k += 2) {
    for (int j = 0; j < kTileColumns; ++j, ++to) *to = bf16_pair(at(k, j), at(k + 1, j));
  }
}

// Packs one block of terms of a panel, which is two tiles.
inline void pack_panel_block(const GemmTask& task, std::int64_t panel, std::int64_t term, int terms, char* to) {
  const bf16* const b = static_cast<const bf16*>(task.b);
  for (std::int64_t column = panel * kTilePanelColumns, end = smaller(column + kTilePanelColumns, task.b_columns.count); column < end; column += kTileColumns, to += kTileBytes) {
    Bf16Pair* const tile = reinterpret_cast<Bf16Pair*>(to);
    const int columns = static_cast<int>(smaller(kTileColumns, end - column));
    if (adjacent(task.b_depth, term, terms)) {
      pack_tile_of_adjacent_terms(task, b, column, columns, term, terms, tile);
    } else if (adjacent(task.b_columns, column, columns)) {
      pack_tile_of_adjacent_columns(task, b, column, columns, term, terms, tile);
    } else {
      pack_tile_by_elements(task, b, column, columns, term, terms, tile);
    }
  }
}

inline void pack_tiles(const GemmTask& task, const PackedColumns& b, Range panels, Range terms) {
  // If columns are adjacent, one block of terms at a time is packed for all panels, so that memory is read in order.
  const std::int64_t step = task.b_columns.stride == 1 ? kTileTerms : terms.last - terms.first;
  for (std::int64_t first = terms.first; first < terms.last; first += step) {
    const std::int64_t last = smaller(first + step, terms.last);
    for (std::int64_t panel = panels.first; panel < panels.last; ++panel) {
      char* to = packed_tiles_at(b, panel, first);
      for (std::int64_t term = first; term < last; term += kTileTerms, to += kPanelBlockBytes) {
        pack_panel_block(task, panel, term, static_cast<int>(smaller(kTileTerms, last - term)), to);
      }
    }
  }
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
