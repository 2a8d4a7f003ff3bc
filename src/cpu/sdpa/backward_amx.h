// The backward pass of bfloat16 with AMX. AMX tiles compute the matrix products, and vector registers compute p and d_x between the products. Only kernel
// sources (*_kernel.cc) include this file.
//
//   for each double strip (32 rows of a query block, which are two rows of tiles)
//     for each chunk of 32 keys
//       x = q k^T and d_p = d_out v^T are stored in the first-level cache
//       p and d_x are computed in registers, two rows at a time, rounded, and stored as tiles of the products below (RoundedTiles)
//     d_q += d_x k
//   d_v^T += d_out^T p and d_k^T += q^T d_x for each double strip of the query block; its 32 rows are the terms of one product of tiles
//
// d_v and d_k are computed transposed, so that p and d_x are the second operands of their products. A word of a second operand holds elements of two rows, and one
// shuffle of two rows makes such words. As first operands, p and d_x would have to be transposed in blocks of 16 x 16 words, and they have four times as many words
// as q and d_out (256 keys, heads 64 wide). After the last query block of a key block, the sums of d_v and d_k are transposed back.
#pragma once

#include "cpu/amx_product.h"
#include "cpu/power_for_bf16.h"
#include "cpu/sdpa/differentiate_tiles.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// p and d_x of a query block and a key block, rounded to bfloat16, in tiles of 1 KiB. A chunk is 32 keys.
struct RoundedTiles {
  static constexpr int kTile = 256;  // number of words in a tile
  Bf16Pair* d_x;                     // [16 rows][chunk]: a tile of 16 rows x 16 pairs of keys for each chunk
  // [double strip][chunk][2]: tiles of 16 pairs of rows x 16 keys, in the order of interleave_halves()
  Bf16Pair *p_of_rows, *d_x_of_rows;
  std::int64_t chunks;

  Bf16Pair* row_tile(int row, std::int64_t chunk) const { return d_x + (row / 16 * chunks + chunk) * kTile; }
  std::int64_t pair_tile(int double_strip, std::int64_t chunk) const { return (double_strip * chunks + chunk) * 2 * kTile; }

  // A chunk has two tiles in p_of_rows and d_x_of_rows. tile_of() returns the tile (0 or 1) that holds a key, and column_of() the key's column in that tile.
  static int tile_of(std::int64_t key) { return static_cast<int>(key / 4 % 2); }
  static int column_of(std::int64_t key) { return static_cast<int>(key % 32 / 8 * 4 + key % 4); }

  float p_at(int row, std::int64_t key) const { return half(p_of_rows[pair_tile(row / 32, key / 32) + tile_of(key) * kTile + row / 2 % 16 * 16 + column_of(key)], row % 2); }
  float d_x_at(int row, std::int64_t key) const { return half(row_tile(row, key / 32)[row % 16 * 16 + key % 32 / 2], static_cast<int>(key % 2)); }

  // The addresses at which the rows of a strip store one chunk of p and d_x. strip() returns them.
  struct Strip {
    Bf16Pair *d_x, *p_of_rows, *d_x_of_rows;

    // Rounds and stores p and d_x of rows `row` and row + 1 of the strip. If the arrays have only one vector of keys, the other 16 keys of the chunk get 0.
    template <int Columns>
    POLYHEAD_INLINE void store(int row, const Vector<float> (&p)[2][Columns], const Vector<float> (&of_d_x)[2][Columns]) const {
      static_assert(Columns <= 2);
      Vector<std::int32_t> weights[2], d[2];
#pragma GCC unroll 2
      for (int r = 0; r < 2; ++r) {
        weights[r] = narrow_halves(p[r][0], Columns == 2 ? p[r][Columns - 1] : Vector<float>{});
        d[r] = narrow_halves(of_d_x[r][0], Columns == 2 ? of_d_x[r][Columns - 1] : Vector<float>{});
        store_vector<std::int32_t>(d[r], &d_x[(row + r) * 16].bits);
      }
      store_pairs(weights, p_of_rows + row * 8), store_pairs(d, d_x_of_rows + row * 8);
    }
  };
  Strip strip(int begin, std::int64_t chunk) const {
    const std::int64_t pairs = pair_tile(begin / 32, chunk) + begin / 2 % 16 * 16;
    return {row_tile(begin, chunk), p_of_rows + pairs, d_x_of_rows + pairs};
  }

 private:
  static float half(Bf16Pair pair, int which) { return widen(bf16{static_cast<std::uint16_t>(static_cast<std::uint32_t>(pair.bits) >> 16 * which)}); }

  static POLYHEAD_INLINE void store_pairs(const Vector<std::int32_t> (&rows)[2], Bf16Pair* to) {
    store_vector<std::int32_t>(interleave_halves<false>(rows[0], rows[1]), &to->bits);
    store_vector<std::int32_t>(interleave_halves<true>(rows[0], rows[1]), &(to + kTile)->bits);
  }
};

// Replaces x by exp(factor x - lse), with the error of power_for_bf16(). The arguments `factor` and `reference` are the factor and lse, both multiplied by log2(e).
template <int kCount>
POLYHEAD_INLINE void exp_of_rounded(Vector<float> (&x)[kCount], float reference, float factor) {
#pragma GCC unroll 4
  for (int j = 0; j < kCount; ++j) x[j] = multiply_add<float>(x[j], broadcast(factor), broadcast(-reference));
  power_for_bf16<kCount>(x);
}

using PairStrip = TileStrip<float, Bf16Pair>;

// The products of two strips with a panel of keys: x = q k^T and d_p = d_out v^T. The rows of both strips are numbered together. Row i has its x at x + i
// stride and its d_p at d_p + i stride.
struct PanelProducts {
  float *x, *d_p;
  std::int64_t stride;

  PanelProducts from(int row) const { return {x + row * stride, d_p + row * stride, stride}; }
};

// Computes p and d_score of `Rows` rows of a strip, from row `row` on, for `Columns` vectors of keys.
template <bool kBias, bool kMasks, int Rows, int Columns>
POLYHEAD_INLINE void differentiate_rows(const PairStrip& strip, const PanelProducts& products, int row, std::int64_t panel, std::int64_t begin, Vector<float> (&p)[Rows][Columns],
                                        Vector<float> (&d_score)[Rows][Columns]) {
  const BackwardScratch<float>& s = strip.s;
  const PanelProducts from = products.from(row);
  const float factor = kBias ? strip.scale.natural.high : strip.scale.scaled.high;
  for_each_vector<Rows, Columns, float>(p, [&](int i, int j, Vector<float>& x) { x = load_vector(from.x + i * from.stride + j); });
  finish_tile<kBias, kMasks>(strip, row, panel, begin, p);
#pragma GCC unroll 2
  for (int i = 0; i < Rows; ++i) exp_of_rounded<Columns>(p[i], s.lse[strip.first + row + i] * strip.scale.natural.high, factor);
  for_each_vector<Rows, Columns, float>(d_score, [&](int i, int j, Vector<float>& d) {
    d = differentiate_score<float>(p[i][j / kLanes<float>], load_vector(from.d_p + i * from.stride + j), s.delta[strip.first + row + i]);
  });
}

// Computes p and d_x of the rows of a strip in registers, rounds them and stores them in their tiles.
template <bool kBias, bool kMasks, int Columns>
void round_chunk(const PairStrip& strip, const PanelProducts& products, std::int64_t panel, std::int64_t begin, const RoundedTiles::Strip& to) {
  int row = 0;
  for (; row + 1 < strip.rows; row += 2) {
    Vector<float> p[2][Columns], d_score[2][Columns];
    differentiate_rows<kBias, kMasks>(strip, products, row, panel, begin, p, d_score);
    to.store(row, p, d_score);
  }
  for (; row < kStripRows; row += 2) {
    Vector<float> p[1][Columns] = {}, d_score[1][Columns] = {}, both_p[2][Columns] = {}, both_d_score[2][Columns] = {};
    if (row < strip.rows) differentiate_rows<kBias, kMasks>(strip, products, row, panel, begin, p, d_score);
    for (int j = 0; j < Columns; ++j) both_p[0][j] = p[0][j], both_d_score[0][j] = d_score[0][j];
    to.store(row, both_p, both_d_score);
  }
}

// Replaces the products of a strip's rows by p and d_score. Rows of RowPath::memory keep their products, because later loops over arrays in memory compute their p
// and d_score.
template <bool kBias, bool kMasks, int Columns>
void differentiate_panel(PairStrip& strip, const PanelProducts& products, std::int64_t panel, std::int64_t begin) {
  for (int row = 0; row < strip.rows; ++row) {
    if (strip.paths[row] == RowPath::memory) continue;
    if constexpr (kBias) strip.bias.template fetch<1>(row, begin - panel);
    Vector<float> p[1][Columns], d_score[1][Columns];
    differentiate_rows<kBias, kMasks>(strip, products, row, panel, begin, p, d_score);
    if (strip.paths[row] == RowPath::tiles_of_whole_row) strip.sums[row].add(p[0], d_score[0]);
    const PanelProducts to = products.from(row);
    for_each_vector<1, Columns, float>(p, [&](int, int j, Vector<float>& x) { store_vector<float>(x, to.x + j); });
    for_each_vector<1, Columns, float>(d_score, [&](int, int j, Vector<float>& x) { store_vector<float>(x, to.d_p + j); });
  }
}

// Computes c = a b for the rows of a double strip and `vectors` vectors of keys of a panel, from key `begin` on. a is q or d_out; `panels` holds k or v.
inline void multiply_keys_of_double_strip(TileSums& sums, const PairStrip (&strips)[2], const float* a, std::int64_t stride, const float* panels, std::int64_t depth, std::int64_t panel,
                                  std::int64_t begin, int vectors, float* c, std::int64_t c_stride) {
  multiply_double_strip(sums,
                {.depth = depth,
                 .a = reinterpret_cast<const Bf16Pair*>(a) + strips[0].in_block * stride,
                 .a_stride = stride,
                 .b = reinterpret_cast<const Bf16Pair*>(panels) + panel * depth + (begin - panel),
                 .b_stride = kPanelKeys<float>,
                 .c = c,
                 .c_stride = c_stride},
                strips[0].rows + strips[1].rows, vectors);
}

inline void multiply_q_k(TileSums& sums, const PairStrip (&strips)[2], std::int64_t panel, std::int64_t begin, int vectors, const PanelProducts& to) {
  const BackwardScratch<float>& s = strips[0].s;
  multiply_keys_of_double_strip(sums, strips, s.q, s.q_stride, s.k_panels, s.qk_depth, panel, begin, vectors, to.x, to.stride);
}
inline void multiply_d_out_v(TileSums& sums, const PairStrip (&strips)[2], std::int64_t panel, std::int64_t begin, int vectors, const PanelProducts& to) {
  const BackwardScratch<float>& s = strips[0].s;
  multiply_keys_of_double_strip(sums, strips, s.d_out, s.d_out_stride, s.v_panels, s.v_depth, panel, begin, vectors, to.d_p, to.stride);
}

// A range of keys of one panel: `vectors` vectors, from key `begin` on.
struct DoubleStripKeys {
  std::int64_t panel, begin;
  int vectors;
  BlockKind kinds[2];  // for each of the two strips: whether the mask skips the panel, allows a part of it, or allows all of it
};

// Widens `keys` to whole chunks and divides them into panels. Calls skip(keys) for each panel that the mask skips for both strips, and f(keys) for every other
// panel. Returns one bit for each chunk: 1 if f was called for its panel.
template <bool kMasks, class F, class Skip>
POLYHEAD_INLINE std::uint32_t for_each_double_strip_panel(const PairStrip (&strips)[2], KeyRange keys, const Skip& skip, const F& f) {
  std::uint32_t chunks = 0;
  for_each_panel<float>(keys.first / 32 * 32, keys.last, [&](std::int64_t panel, std::int64_t begin, int vectors) {
    DoubleStripKeys of_panel{panel, begin, vectors, {}};
    bool any = false;
    for (int i = 0; i < 2; ++i) {
      of_panel.kinds[i] = strips[i].rows == 0 ? BlockKind::skip : kMasks ? strips[i].blocks.at(strips[i].first_key + panel) : BlockKind::full;
      any = any || of_panel.kinds[i] != BlockKind::skip;
    }
    if (!any) return skip(of_panel);
    chunks |= ((1U << (vectors + 1) / 2) - 1) << begin / 32;
    f(of_panel);
  });
  return chunks;
}

// Loads the bias and the masks of a panel of keys.
template <bool kBias>
void load_panel(PairStrip (&strips)[2], const DoubleStripKeys& keys) {
  const BackwardScratch<float>& s = strips[0].s;
  for (int i = 0; i < 2; ++i) {
    PairStrip& strip = strips[i];
    if (keys.kinds[i] == BlockKind::skip) continue;
    const StripPanel rows(strip.group, strip.first_row, strip.rows, strip.first_key + keys.panel, kPanelKeys<float>);
    strip.masks.load(strip.group, rows, keys.kinds[i] != BlockKind::full, s.panel_bytes + i * KeySet::kMostMasks * kStripRows * kPanelKeys<float>);
    if constexpr (kBias) strip.bias.load(strip.task.bias, strip.task.bias_dtype, rows, s.panel_bias + i * kStripRows * kPanelKeys<float>);
  }
}

// Computes p and d_score of a double strip and rounds them, a chunk at a time. The products of a chunk need 8 KiB; the products of two chunks would evict q, d_out, k or v
// from the first-level cache. The tiles compute q k^T of the next chunk before the vector operations of the current chunk, and store the result after them, so
// that tiles and vector operations run at the same time.
template <bool kBias, bool kMasks>
std::uint32_t round_panels(PairStrip (&strips)[2], KeyRange keys, AmxTiles& tiles, const RoundedTiles& to) {
  DoubleStripKeys list[kBlockKeys<float> / 32];
  int count = 0;
  const std::uint32_t chunks = for_each_double_strip_panel<kMasks>(strips, keys, [](const DoubleStripKeys&) {}, [&](const DoubleStripKeys& panel) {
    for (int j = 0; j < panel.vectors; j += 2) {
      list[count] = panel;
      list[count].begin += j * 16, list[count].vectors = panel.vectors - j > 1 ? 2 : 1;
      ++count;
    }
  });
  const PanelProducts products{strips[0].s.p, strips[0].s.d_x, 32};
  TileSums sums(tiles);
  const auto multiply_q_k_of = [&](const DoubleStripKeys& chunk) { multiply_q_k(sums, strips, chunk.panel, chunk.begin, chunk.vectors, products); };
  const auto multiply_d_out_v_of = [&](const DoubleStripKeys& chunk) { multiply_d_out_v(sums, strips, chunk.panel, chunk.begin, chunk.vectors, products); };
  if (count > 0) multiply_q_k_of(list[0]), multiply_d_out_v_of(list[0]);
  for (int c = 0; c < count; ++c) {
    const DoubleStripKeys& chunk = list[c];
    c + 1 < count ? multiply_q_k_of(list[c + 1]) : sums.finish();
    if (c == 0 || chunk.panel != list[c - 1].panel) load_panel<kBias>(strips, chunk);
    for (int i = 0; i < 2; ++i) {
      const RoundedTiles::Strip rounded = to.strip(strips[0].in_block + i * kStripRows, chunk.begin / 32);
      if (chunk.kinds[i] == BlockKind::skip) {
        for (int row = 0; row < kStripRows; row += 2) rounded.store<1>(row, {}, {});
      } else {
        with_count<2>(chunk.vectors, [&](auto of_vectors) { round_chunk<kBias, kMasks, of_vectors()>(strips[i], products.from(i * kStripRows), chunk.panel, chunk.begin, rounded); });
      }
    }
    if (c + 1 < count) multiply_d_out_v_of(list[c + 1]);
  }
  return chunks;
}

// Computes p and d_score of a double strip and stores them in s.p and s.d_x [double strip row, key]. Rows of RowPath::memory get the products q k^T and d_out
// v^T there instead.
template <bool kBias, bool kMasks>
std::uint32_t differentiate_panels(PairStrip (&strips)[2], KeyRange keys, AmxTiles& tiles) {
  const BackwardScratch<float>& s = strips[0].s;
  const auto clear_rows = [&](int first, int last, const DoubleStripKeys& panel) {
    for (int row = first; row < last; ++row) {
      const std::int64_t end = panel.begin + panel.vectors * 16;
      clear(s.p + row * s.stride, panel.begin, end), clear(s.d_x + row * s.stride, panel.begin, end);
    }
  };
  return for_each_double_strip_panel<kMasks>(strips, keys, [&](const DoubleStripKeys& panel) { clear_rows(0, strips[0].rows + strips[1].rows, panel); }, [&](const DoubleStripKeys& panel) {
    const PanelProducts products{s.p + panel.begin, s.d_x + panel.begin, s.stride};
    TileSums sums(tiles);
    multiply_q_k(sums, strips, panel.panel, panel.begin, panel.vectors, products), multiply_d_out_v(sums, strips, panel.panel, panel.begin, panel.vectors, products);
    sums.finish();
    load_panel<kBias>(strips, panel);
    for (int i = 0; i < 2; ++i) {
      if (panel.kinds[i] == BlockKind::skip) {
        clear_rows(i * kStripRows, i * kStripRows + strips[i].rows, panel);
      } else {
        with_count<4>(panel.vectors, [&](auto count) { differentiate_panel<kBias, kMasks, count()>(strips[i], products.from(i * kStripRows), panel.panel, panel.begin); });
      }
    }
  });
}

// Computes p and d_score of a double strip. If kRound, the results are rounded and stored in `to`, else they are stored in s.p and s.d_x. Returns one bit for
// each chunk of keys: 1 if the mask does not skip the chunk.
template <bool kRound>
std::uint32_t differentiate_double_strip(PairStrip (&strips)[2], KeyRange keys, AmxTiles& tiles, const RoundedTiles& to) {
  const BackwardTask& task = strips[0].task;
  for (PairStrip& strip : strips) {
    strip.find_inner(strip.s.keys);
    for (int i = 0; i < strip.rows && !kRound; ++i) strip.sums[i] = first_sums(task, strip.s, strip.first + i);
  }
  const auto run = [&]<bool kBias, bool kMasks>() {
    if constexpr (kRound) {
      return round_panels<kBias, kMasks>(strips, keys, tiles, to);
    } else {
      return differentiate_panels<kBias, kMasks>(strips, keys, tiles);
    }
  };
  const std::uint32_t chunks = task.bias.data != nullptr  ? run.template operator()<true, true>()
                               : task.mask_count != 0 ? run.template operator()<false, true>()
                                                        : run.template operator()<false, false>();
  for (int i = 0; i < kDoubleStripRows && !kRound; ++i) {
    const PairStrip& strip = strips[i / kStripRows];
    const int row = i % kStripRows;
    if (row >= strip.rows || strip.paths[row] != RowPath::tiles_of_whole_row) continue;
    normalise_row(strip.own[row].first / 16 * 16, round_up(strip.own[row].last, 16), RowFactors<float>(strip.sums[row]), strip.s.p + i * strip.s.stride, strip.s.d_x + i * strip.s.stride);
  }
  return chunks;
}

// Rounds p and d_x of a double strip from s.p and s.d_x. In vectors of keys to which a row does not attend, s.p and s.d_x may hold anything; the results there
// are 0.
inline void round_double_strip(const PairStrip (&strips)[2], std::uint32_t chunks, const RoundedTiles& to) {
  const BackwardScratch<float>& s = strips[0].s;
  for (int row = 0; row < kDoubleStripRows; row += 2) {
    const int strip_row = row % kStripRows, begin = strips[0].in_block + row - strip_row;
    KeyRange own[2] = {{0, 0}, {0, 0}};
    for (int i = 0; i < 2; ++i) {
      const PairStrip& strip = strips[(row + i) / kStripRows];
      const int index = (row + i) % kStripRows;
      if (index < strip.rows && !strip.own[index].empty()) own[i] = {strip.own[index].first / 16 * 16, round_up(strip.own[index].last, 16)};
    }
    for (std::int64_t chunk = 0; chunk < to.chunks; ++chunk) {
      if ((chunks >> chunk & 1) == 0) continue;
      Vector<float> p[2][2], d_x[2][2];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const std::int64_t key = chunk * 32 + i % 2 * 16, at = (row + i / 2) * s.stride + key;
        const bool attends = key >= own[i / 2].first && key < own[i / 2].last;
        p[i / 2][i % 2] = attends ? load_vector(s.p + at) : Vector<float>{};
        d_x[i / 2][i % 2] = attends ? load_vector(s.d_x + at) : Vector<float>{};
      }
      to.strip(begin, chunk).store(strip_row, p, d_x);
    }
  }
}

// Adds d_x k to `to` for the rows of a double strip, which begins at row `begin` of the query block. A word of k holds elements of two neighbouring keys.
inline void add_to_d_q(AmxTiles& tiles, const RoundedTiles& from, int begin, int rows, std::uint32_t chunks, const Bf16Pair* k, std::int64_t padded, float* to, std::int64_t stride) {
  if (padded == 0) return;
  alignas(64) float memory[2][kDoubleStripRows * 32];
  TileSums sums(tiles);
  const auto add = [&](const float* group, std::int64_t column) {
    const std::int64_t width = smaller(32, padded - column);
    for (int i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < width; j += kLanes<float>) store_vector<float>(load_vector(to + i * stride + column + j) + load_vector(group + i * 32 + j), to + i * stride + column + j);
    }
  };
  std::int64_t column = 0;
  for (; column < padded; column += 32) {
    with_tiles(rows / 17 + 1, (padded - column) / 16, [&](auto r, auto c) {
      sums.begin(memory[column / 32 % 2], 32, 16 * 32, 16);
      for (std::int64_t chunk = 0; chunk < from.chunks; ++chunk) {
        if ((chunks >> chunk & 1) != 0)
          sums.add<r(), c(), false>(from.row_tile(begin, chunk), 16, from.chunks * RoundedTiles::kTile, k + chunk * 16 * padded + column, padded, 16);
      }
    });
    if (column > 0) add(memory[column / 32 % 2 ^ 1], column - 32);  // add the sums of the previous columns while the tiles multiply the current columns
  }
  sums.finish();
  add(memory[column / 32 % 2 ^ 1], column - 32);
}

// Adds a^T b, summed over the double strips of a query block, to the transposed sums `to` [chunk][2][16 columns of a, 16 keys]. a is q or d_out, in tiles of 16 columns
// x 16 pairs of rows; b is p or d_x.
inline void add_to_columns(AmxTiles& tiles, const Bf16Pair* a, const Bf16Pair* b, const RoundedTiles& of_b, const std::uint32_t* chunks, int double_strips, std::int64_t padded, float* to) {
  TileSums sums(tiles);
  for (std::int64_t chunk = 0; chunk < of_b.chunks; ++chunk) {
    std::uint32_t any = 0;
    for (int double_strip = 0; double_strip < double_strips; ++double_strip) any |= chunks[double_strip] >> chunk & 1;
    if (any == 0) continue;
    for (std::int64_t column = 0; column < padded; column += 32) {
      with_tiles((padded - column) / 16, 2, [&](auto r, auto c) {
        sums.begin(to + chunk * 32 * padded + column, padded, 16, 16 * padded);
        for (int double_strip = 0; double_strip < double_strips; ++double_strip) {
          if ((chunks[double_strip] >> chunk & 1) != 0) sums.add<r(), c(), true>(a + double_strip * 16 * padded + column, padded, 16, b + of_b.pair_tile(double_strip, chunk), 16, RoundedTiles::kTile);
        }
      });
    }
  }
  sums.finish();
}

// Packs `count` rows for products that sum over rows. An input word holds two neighbouring columns of a row; an output word holds one column of two neighbouring
// rows. `to` [count / 2, width] consists of tiles of 16 x 16 output words. width and count must be multiples of 32. Returns false, with any contents of `to`, if
// an element is not finite.
inline bool pack_finite_columns(const Bf16Pair* rows, std::int64_t width, std::int64_t count, Bf16Pair* to) {
  Vector<std::uint32_t> infinite{};
  const auto add_exponents = [&](Vector<std::int32_t> words) { infinite |= ((Vector<std::uint32_t>)words & 0x7f807f80U) + 0x00800080U; };  // if all exponent bits are 1 (NaN or infinity), the addition sets the half's sign bit
  for (std::int64_t row = 0; row < count; row += 32, rows += 16 * width, to += 16 * width) {
    for (std::int64_t column = 0; column < width; column += 32) {
      Vector<std::int32_t> even[kLanes<float>], odd[kLanes<float>];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes<float>; ++i) {
        even[i] = load_vector(&rows[i * width + column / 2].bits), odd[i] = load_vector(&rows[i * width + width / 2 + column / 2].bits);
        add_exponents(even[i]), add_exponents(odd[i]);
      }
      transpose<std::int32_t>(even), transpose<std::int32_t>(odd);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes<float>; ++i) {
        Bf16Pair* const at = to + i % 8 * 2 * width + column + i / 8 * 16;
        store_vector<std::int32_t>((even[i] & 0xffff) | odd[i] << 16, &at->bits);
        store_vector<std::int32_t>((even[i] >> 16 & 0xffff) | (odd[i] & ~0xffff), &at[width].bits);
      }
    }
  }
  return !any_lane((Vector<std::int32_t>)(infinite & 0x80008000U));
}

// Transposes in place each block of 16 x 16 words of the matrix `words` [rows, padded].
inline void transpose_blocks(Bf16Pair* words, std::int64_t rows, std::int64_t padded) {
  for (std::int64_t row = 0; row < rows; row += 16, words += 16 * padded) {
    for (std::int64_t column = 0; column < padded; column += 16) {
      Vector<std::int32_t> x[kLanes<float>];
      for (int i = 0; i < kLanes<float>; ++i) x[i] = load_vector(&words[i * padded + column].bits);
      transpose<std::int32_t>(x);
      for (int i = 0; i < kLanes<float>; ++i) store_vector<std::int32_t>(x[i], &words[i * padded + column].bits);
    }
  }
}

// Returns the element of d_k or d_v for a key and a column in the transposed sums of add_to_columns(), before transpose_sums() is called.
POLYHEAD_INLINE float& sum_at(float* sums, std::int64_t padded, std::int64_t key, std::int64_t column) {
  return sums[(key / 32 * 32 + RoundedTiles::tile_of(key) * 16 + column % 16) * padded + column / 16 * 16 + RoundedTiles::column_of(key)];
}

// Transposes the sums of add_to_columns() back in place, so that each key has one row.
inline void transpose_sums(float* sums, std::int64_t keys, std::int64_t padded) {
  for (std::int64_t key = 0; key < keys; key += 32, sums += 32 * padded) {
    for (std::int64_t column = 0; column < padded; column += 16) {
      Vector<float> lines[2][kLanes<float>];
      for (int tile = 0; tile < 2; ++tile) {
        Vector<float> x[kLanes<float>];
        for (int i = 0; i < kLanes<float>; ++i) x[i] = load_vector(sums + (tile * 16 + i) * padded + column);
        transpose<float>(x);
        for (int i = 0; i < kLanes<float>; ++i) lines[tile][i] = x[i];
      }
      for (int i = 0; i < 32; ++i) store_vector<float>(lines[RoundedTiles::tile_of(i)][RoundedTiles::column_of(i)], sums + i * padded + column);
    }
  }
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
