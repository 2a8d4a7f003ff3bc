// Provides the rows of a to AMX tiles, 16 rows x 32 terms at a time: in place if possible, else as a copy. Only kernel sources (*_kernel.cc) include this file.
#pragma once

#include "cpu/gemm/pack_tiles.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

inline constexpr int kRowsOfTile = 16, kRowsOfBlock = 2 * kRowsOfTile;

// 16 rows of a. Block i of the terms begins at `first` + i * step, and its rows are `stride` bytes apart. If the last block has fewer than 32 terms, `tail` is
// a copy of this block, padded with zeros, with rows of 64 bytes.
struct TileRows {
  const char* first;
  std::int64_t stride, step;
  const char* tail;
};

// Returns whether the kernel can read a in place: its terms are adjacent and one stride describes all rows.
POLYHEAD_INLINE bool reads_a_in_place(const GemmTask& task) { return task.a_rows.offsets == nullptr && adjacent(task.a_depth, 0, task.a_depth.count); }

// Returns the bytes of scratch that TilesOfA needs.
POLYHEAD_INLINE std::int64_t tiles_of_a_bytes(const GemmTask& task, std::int64_t rows, std::int64_t terms) {
  const std::int64_t tiles = (rows + kRowsOfTile - 1) / kRowsOfTile, blocks = term_blocks(terms);
  return (reads_a_in_place(task) ? tiles + blocks : tiles * blocks) * kTileBytes;
}

// Copies 32 terms of 16 rows of a. The rows are adjacent in memory and the terms are not (d_y^T for the gradient of a weight). Two terms are interleaved to
// pairs, and the pairs are transposed as 32-bit words.
inline void copy_tile_of_adjacent_rows(const bf16* a, const GemmAxis& depth, int rows, std::int64_t term, int terms, Bf16Pair* to) {
  Vector<std::int32_t> x[kTilePairs];
  for (int i = 0; i < kTilePairs; ++i) {
    x[i] = Vector<std::int32_t>{};
    if (2 * i < terms) x[i] = load_halves(a + offset_of(depth, term + 2 * i), rows);
    if (2 * i + 1 < terms) x[i] |= load_halves(a + offset_of(depth, term + 2 * i + 1), rows) << 16;
  }
  transpose<std::int32_t>(x);
  for (int i = 0; i < kRowsOfTile; ++i) store_vector<std::int32_t>(x[i], &to[i * kTilePairs].bits);
}

// Copies the terms [term, term + terms) of `rows` rows to a tile, and sets the rest of the tile to 0.
inline void copy_tile(const GemmTask& task, std::int64_t row, int rows, std::int64_t term, int terms, char* to) {
  const bf16* const a = static_cast<const bf16*>(task.a);
  Bf16Pair* pairs = reinterpret_cast<Bf16Pair*>(to);
  const bool terms_adjacent = adjacent(task.a_depth, term, terms);
  if (!terms_adjacent && adjacent(task.a_rows, row, rows)) {
    return copy_tile_of_adjacent_rows(a + offset_of(task.a_rows, row), task.a_depth, rows, term, terms, pairs);
  }
  for (int i = 0; i < kRowsOfTile; ++i, pairs += kTilePairs) {
    Vector<std::int32_t> line{};
    if (i < rows) {
      const bf16* const from = a + offset_of(task.a_rows, row + i);
      if (terms_adjacent) {
        line = load_pairs(from + offset_of(task.a_depth, term), terms);
      } else {
        bf16 gathered[kTileTerms] = {};
        for (int k = 0; k < terms; ++k) gathered[k] = from[offset_of(task.a_depth, term + k)];
        __builtin_memcpy(&line, gathered, sizeof line);
      }
    }
    store_vector<std::int32_t>(line, &pairs->bits);
  }
}

inline constexpr int kMostTilesOfA = 32;

class TilesOfA {
 public:
  TilesOfA(const GemmTask& task, Range rows, Range terms, char* scratch) : blocks_(term_blocks(terms.last - terms.first)) {
    const std::int64_t count = terms.last - terms.first, whole = count / kTileTerms * kTileTerms;
    const bool terms_adjacent = adjacent(task.a_depth, terms.first, count);
    bool copies = false;
    int tiles = 0;
    for (std::int64_t row = rows.first; row < rows.last; row += kRowsOfTile, ++tiles) {
      const std::int64_t some = smaller(kRowsOfTile, rows.last - row);
      const bool evenly = task.a_rows.offsets == nullptr || row % task.a_rows.run + some <= task.a_rows.run;
      if (terms_adjacent && evenly && some == kRowsOfTile) {
        const bf16* const from = static_cast<const bf16*>(task.a) + offset_of(task.a_rows, row) + offset_of(task.a_depth, terms.first);
        rows_[tiles] = {reinterpret_cast<const char*>(from), task.a_rows.stride * 2, 2 * kTileTerms, whole < count ? scratch : nullptr};
        if (whole < count) {
          copy_tile(task, row, kRowsOfTile, terms.first + whole, static_cast<int>(count - whole), scratch);
          scratch += kTileBytes;
        }
      } else {
        rows_[tiles] = {scratch, kTilePairs * 4, kTileBytes, nullptr};
        scratch += blocks_ * kTileBytes;
        copies = true;
      }
    }
    if (!copies) return;
    // Copy one block of terms of all tiles at a time. If the rows of a are adjacent, memory is then read in order.
    for (std::int64_t block = 0; block < blocks_; ++block) {
      const std::int64_t term = terms.first + block * kTileTerms;
      for (int i = 0; i < tiles; ++i) {
        if (rows_[i].step != kTileBytes) continue;
        const std::int64_t row = rows.first + i * kRowsOfTile;
        // const_cast is safe here, because the tile that is written is scratch memory of this call and not the caller's a.
        copy_tile(task, row, static_cast<int>(smaller(kRowsOfTile, rows.last - row)), term, static_cast<int>(smaller(kTileTerms, terms.last - term)),
                  const_cast<char*>(rows_[i].first) + block * kTileBytes);
      }
    }
  }

  const TileRows* operator[](std::int64_t tile) const { return rows_ + tile; }
  std::int64_t blocks() const { return blocks_; }

 private:
  std::int64_t blocks_;
  TileRows rows_[kMostTilesOfA];
};

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
