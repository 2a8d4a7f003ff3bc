// Computes c = a b, c += a b or c = earlier c + own (a b) for a few rows of a, with the sums in registers. Only kernel sources (*_kernel.cc) include this file.
//
// 32 registers hold 6 x 4 vectors of sums, 4 vectors of b and 1 of a. A term then needs 24 multiplications and 10 loads; a processor does two of each in a
// cycle, so the loads do not limit the speed. 16 registers hold 6 x 2 sums. A multiplication takes 4 cycles, so at least 8 independent sums are needed; narrow
// products therefore use tiles of 12 rows.
#pragma once

#include "cpu/bf16_pairs.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

inline constexpr int kTileVectors = kRegisters >= 32 ? 4 : 2;  // number of vectors in a row of the widest tile of sums
inline constexpr int kTileRows = 6;
// Number of rows of a strip: with AMX the rows of one AMX tile, else the rows of two tiles of kTileRows.
inline constexpr int kStripRows = kHasAmx ? 16 : 2 * kTileRows;
// Number of rows of the largest strip: with AMX the forward pass multiplies the rows of two AMX tiles at a time.
inline constexpr int kMostStripRows = kHasAmx ? 2 * kStripRows : kStripRows;

// Calls f(std::integral_constant<int, n>) for n in 1 ... kMost.
template <int kMost, class F>
POLYHEAD_INLINE void with_count(int n, const F& f) {
  if constexpr (kMost > 1) {
    if (n < kMost) return with_count<kMost - 1>(n, f);
  }
  f(std::integral_constant<int, kMost>{});
}

// A sum over keys is made of runs of this many terms, because the rounding error of a sum grows with the number of its terms. With runs of 128 terms, attention
// in float32 has about the errors of PyTorch's, or smaller ones (docs/experiments.md, "Errors of float32").
inline constexpr std::int64_t kRunTerms = 128;

// Returns the length of the first run of a sum that begins with term `term` of a key block. Runs end at multiples of kRunTerms, so a row's sum does not depend
// on the key at which its product begins.
constexpr std::int64_t first_run_from(std::int64_t term) { return kRunTerms - term % kRunTerms; }

// The type of the elements of a: bfloat16 pairs if the elements of b are such pairs, else the compute type.
template <class T, class B>
using Factor = std::conditional_t<std::is_same_v<B, Bf16Pair>, Bf16Pair, T>;

// The arguments of a product. B is the type of the elements of b. If B is Bf16Pair, a pair counts as one term, whose two products are both added to the sum.
template <class T, class B = T>
struct Product {
  std::int64_t depth;
  const Factor<T, B>* a;
  // Distance between rows of a. If kTransposed: distance between terms; the rows of one term are adjacent in memory.
  std::int64_t a_stride;
  const B* b;
  std::int64_t b_stride;
  T* c;
  std::int64_t c_stride;
  const T *earlier = nullptr, *own = nullptr;  // if given, c = earlier c + own (a b), with one factor `earlier` and one `own` for each row
  bool add = false;                            // true: c += a b. Without `add` and `earlier`, c = a b
  T* quotient = nullptr;                       // if given, c / divisor is stored here and c does not change
  std::int64_t quotient_stride = 0;
  const T *divisor = nullptr, *reciprocal = nullptr;  // for each row: the divisor, and 1 / divisor
  const T* correction = nullptr;                      // one factor for each row, only with bfloat16 pairs; if given, a b is first multiplied by it
  // If not 0, the sum is made of runs. The first run has this many terms, all later runs kRunTerms, and the sums of the runs are added in order. It is 0 with
  // bfloat16 pairs, and if kTransposed, because such a product has at most 96 terms.
  std::int64_t first_run = 0;
  const float* b_scale = nullptr;                     // one scale for each term of an int8 b
  std::int64_t b_scale_stride = 0;
};

// Where b lies, which decides what is prefetched. first_cache: nothing. second_cache: b is prefetched eight terms (100 cycles) ahead. If kTransposed, a is
// prefetched instead, for the tile after the next, because one cache line has the rows of two or three tiles. memory: b is prefetched in two steps: far ahead
// into the second-level cache, which can have more outstanding misses, and later into the first-level cache. memory_finite: like memory, but NaN and infinities
// of b count as 0.
enum class From { first_cache, second_cache, memory, memory_finite };

// Returns earlier c + own x. With it the kernels join the product of a key block with v to the products of earlier key blocks (cpu/sdpa/join_blocks.h).
template <class T>
POLYHEAD_INLINE Vector<T> join_values(Vector<T> c, T earlier, Vector<T> x, T own) {
  return multiply_add<T>(c, broadcast(earlier), x * own);
}

// Adds the terms [first, last) to the sums of a tile in registers.
template <int Rows, int Columns, bool kTransposed, From kFrom, class T, class B = T>
POLYHEAD_INLINE void add_terms(const Product<T, B>& product, std::int64_t row, std::int64_t column, std::int64_t first_term,
                               std::int64_t last_term, Vector<T> (&sums)[Rows][Columns]) {
  constexpr int kWidth = kLanes<T>, kGroup = kTransposed ? Rows : 4;
  // There is one pointer for each group of four rows. Addressing four rows needs two registers, one for the stride and one for three times the stride. A single
  // pointer for twelve rows would need more registers than are left.
  const std::int64_t stride = kTransposed ? 1 : product.a_stride, step = kTransposed ? product.a_stride : 1;
  const Factor<T, B>* a[(Rows + kGroup - 1) / kGroup];
  const Factor<T, B>* first = product.a + row * stride + first_term * step;
#pragma GCC unroll 4
  for (const Factor<T, B>*& group : a) {
    group = first;
    first += kGroup * stride;
    // Hides that all pointers come from the first one. Otherwise the compiler would compute the addresses of all rows from it.
    asm("" : "+r"(group));
  }
  const B* b = product.b + first_term * product.b_stride + column;
  const float* b_scale = std::is_same_v<B, std::int8_t> ? product.b_scale + first_term * product.b_scale_stride : nullptr;
#pragma GCC unroll 2
  for (std::int64_t k = first_term; k < last_term; ++k, b += product.b_stride) {
    FactorVector<T, B> line[Columns];
#pragma GCC unroll 4
    for (int j = 0; j < Columns; ++j) {
      if constexpr (kFrom == From::second_cache && Columns >= 2 && !kTransposed) prefetch_vector(b + 8 * product.b_stride, j);
      if constexpr (kFrom == From::memory) {
        constexpr int kBytes = kWidth * static_cast<int>(sizeof(B)), kNear = 128 / static_cast<int>(sizeof(B)), kFar = 4 * kNear;
        if (j * kBytes % 64 < kBytes) {  // one prefetch for each cache line, which may hold several vectors
          __builtin_prefetch(b + kNear * product.b_stride + j * kWidth);
          __builtin_prefetch(b + kFar * product.b_stride + j * kWidth, 0, 2);
        }
      }
      line[j] = load_factor<T>(b + j * kWidth);
    }
    if constexpr (std::is_same_v<B, std::int8_t>) {
#pragma GCC unroll 4
      for (int j = 0; j < Columns; ++j) line[j] *= *b_scale;
      b_scale += product.b_scale_stride;
    }
    if constexpr (kFrom == From::memory_finite) {
#pragma GCC unroll 4
      for (int j = 0; j < Columns; ++j) line[j] = line[j] * T{0} == Vector<T>{} ? line[j] : Vector<T>{};
    }
    if constexpr (kFrom == From::second_cache && kTransposed) __builtin_prefetch(a[0] + 2 * kTileRows + 4);
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
      const FactorVector<T, B> x = broadcast_factor(a[i / kGroup][i % kGroup * stride]);
#pragma GCC unroll 4
      for (int j = 0; j < Columns; ++j) add_product<T>(sums[i][j], x, line[j]);
    }
#pragma GCC unroll 4
    for (const Factor<T, B>*& group : a) group += step;
  }
}

template <int Rows, int Columns, class T>
POLYHEAD_INLINE void clear_vectors(Vector<T> (&sums)[Rows][Columns]) {
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < Columns; ++j) sums[i][j] = Vector<T>{};
  }
}

// Computes the sums of a tile in registers, as one run.
template <int Rows, int Columns, bool kTransposed, From kFrom, class T, class B = T>
POLYHEAD_INLINE void sum_tile(const Product<T, B>& product, std::int64_t row, std::int64_t column, Vector<T> (&sums)[Rows][Columns]) {
  clear_vectors<Rows, Columns, T>(sums);
  add_terms<Rows, Columns, kTransposed, kFrom>(product, row, column, 0, product.depth, sums);
}

// Returns the index of the term after the first run of a sum (kRunTerms explains runs). If the sum is one run, this is the depth.
template <class T, class B>
POLYHEAD_INLINE std::int64_t first_run_end(const Product<T, B>& product) {
  return product.first_run > 0 && product.first_run < product.depth ? product.first_run : product.depth;
}
// Returns the index of the term after the run that begins with term `term`.
template <class T, class B>
POLYHEAD_INLINE std::int64_t next_run_end(const Product<T, B>& product, std::int64_t term) {
  return term + kRunTerms < product.depth ? term + kRunTerms : product.depth;
}

template <int Rows, int Columns, class T>
POLYHEAD_INLINE void add_vectors(const Vector<T> (&from)[Rows][Columns], Vector<T> (&to)[Rows][Columns]) {
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < Columns; ++j) to[i][j] += from[i][j];
  }
}

// Adds the sums of a run to `earlier_runs` and clears them.
template <int Rows, int Columns, class T>
POLYHEAD_INLINE void end_run(Vector<T> (&sums)[Rows][Columns], Vector<T> (&earlier_runs)[Rows][Columns]) {
  add_vectors<Rows, Columns, T>(sums, earlier_runs);
  clear_vectors<Rows, Columns, T>(sums);
}

// Does the work of sum_tile() for a sum of several runs, whose lengths product.first_run determines.
template <int Rows, int Columns, bool kTransposed, From kFrom, class T, class B>
POLYHEAD_INLINE void sum_runs(const Product<T, B>& product, std::int64_t row, std::int64_t column, Vector<T> (&sums)[Rows][Columns]) {
  clear_vectors<Rows, Columns, T>(sums);
  Vector<T> earlier_runs[Rows][Columns] = {};
  std::int64_t term = 0, end = first_run_end(product);
  for (;;) {
    add_terms<Rows, Columns, kTransposed, kFrom>(product, row, column, term, end, sums);
    if (end == product.depth) break;
    end_run<Rows, Columns, T>(sums, earlier_runs);
    term = end, end = next_run_end(product, end);
  }
  add_vectors<Rows, Columns, T>(earlier_runs, sums);
}

// Calls f(row, column, sum) for each vector of the tile.
template <int Rows, int Columns, class T, class F>
POLYHEAD_INLINE void for_each_vector(Vector<T> (&sums)[Rows][Columns], const F& f) {
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < Columns; ++j) f(i, j * kLanes<T>, sums[i][j]);
  }
}

// Stores the sums of a tile in c or in `quotient`, with the additions and factors that the members of `product` request.
template <int Rows, int Columns, class T, class B>
POLYHEAD_INLINE void store_tile(const Product<T, B>& product, std::int64_t row, std::int64_t column, Vector<T> (&sums)[Rows][Columns]) {
  T* const c = product.c + row * product.c_stride + column;
  const std::int64_t stride = product.c_stride;
  if constexpr (std::is_same_v<B, Bf16Pair>) {
    if (product.correction != nullptr) {
      const T* correction = product.correction + row;
      for_each_vector<Rows, Columns, T>(sums, [=](int i, int, Vector<T>& sum) { sum *= correction[i]; });
    }
  }
  if (product.earlier != nullptr) {
    const T *earlier = product.earlier + row, *own = product.own + row;
    for_each_vector<Rows, Columns, T>(
        sums, [=](int i, int j, Vector<T>& sum) { sum = join_values<T>(load_vector(c + i * stride + j), earlier[i], sum, own[i]); });
  } else if (product.add) {
    for_each_vector<Rows, Columns, T>(sums, [=](int i, int j, Vector<T>& sum) { sum = load_vector(c + i * stride + j) + sum; });
  }
  if (product.quotient != nullptr) {
    T* const to = product.quotient + row * product.quotient_stride + column;
    const T *divisor = product.divisor + row, *reciprocal = product.reciprocal + row;
    const std::int64_t to_stride = product.quotient_stride;
    for_each_vector<Rows, Columns, T>(
        sums, [=](int i, int j, Vector<T> sum) { store_vector<T>(divide<T>(sum, divisor[i], reciprocal[i]), to + i * to_stride + j); });
  } else {
    for_each_vector<Rows, Columns, T>(sums, [=](int i, int j, Vector<T> sum) { store_vector<T>(sum, c + i * stride + j); });
  }
}

// kRuns: the sum has several runs. A tile of one run has separate code, because the loop over runs would keep sums in memory.
template <int Rows, int Columns, bool kTransposed, From kFrom, bool kRuns, class T, class B>
POLYHEAD_INLINE void multiply_tile(const Product<T, B>& product, std::int64_t row, std::int64_t column) {
  Vector<T> sums[Rows][Columns];
  if constexpr (kRuns) {
    sum_runs<Rows, Columns, kTransposed, kFrom>(product, row, column, sums);
  } else {
    sum_tile<Rows, Columns, kTransposed, kFrom>(product, row, column, sums);
  }
  store_tile(product, row, column, sums);
}

template <int Columns, bool kTransposed, From kFrom, bool kRuns, class T, class B>
void multiply_rows(const Product<T, B>& product, int rows, std::int64_t column) {
  int row = 0;
  if constexpr (kTileVectors * kTileRows >= 12 * Columns) {
    for (; row + 12 <= rows; row += 12) multiply_tile<12, Columns, kTransposed, kFrom, kRuns>(product, row, column);
  }
  for (; row + kTileRows <= rows; row += kTileRows) multiply_tile<kTileRows, Columns, kTransposed, kFrom, kRuns>(product, row, column);
  switch (rows - row) {
    case 1:
      return multiply_tile<1, Columns, kTransposed, kFrom, kRuns>(product, row, column);
    case 2:
      return multiply_tile<2, Columns, kTransposed, kFrom, kRuns>(product, row, column);
    case 3:
      return multiply_tile<3, Columns, kTransposed, kFrom, kRuns>(product, row, column);
    case 4:
      return multiply_tile<4, Columns, kTransposed, kFrom, kRuns>(product, row, column);
    case 5:
      return multiply_tile<5, Columns, kTransposed, kFrom, kRuns>(product, row, column);
    default:
      return;
  }
}

// Computes all of c [rows, vectors]. Five vectors are computed as tiles of 3 + 2 vectors, not 4 + 1, because a tile with one vector in a row is limited by the
// speed of loads.
template <bool kTransposed, From kFrom, bool kRuns, class T, class B>
void multiply_columns(const Product<T, B>& product, int rows, int vectors) {
  for (int done = 0; done < vectors;) {
    const int left = vectors - done;
    const int take = left == kTileVectors + 1 && kTileVectors > 2 ? kTileVectors - 1 : left < kTileVectors ? left : kTileVectors;
    const std::int64_t column = std::int64_t{done} * kLanes<T>;
    switch (take) {
      case 1:
        multiply_rows<1, kTransposed, kFrom, kRuns>(product, rows, column);
        break;
      case 2:
        multiply_rows<2, kTransposed, kFrom, kRuns>(product, rows, column);
        break;
      default:
        if constexpr (kTileVectors > 2) {
          take == 3 ? multiply_rows<3, kTransposed, kFrom, kRuns>(product, rows, column)
                    : multiply_rows<4, kTransposed, kFrom, kRuns>(product, rows, column);
        }
    }
    done += take;
  }
}

template <bool kTransposed = false, From kFrom = From::first_cache, class T, class B = T>
void multiply(const Product<T, B>& product, int rows, int vectors) {
  if constexpr (!kTransposed && !std::is_same_v<B, Bf16Pair>) {
    if (first_run_end(product) < product.depth) return multiply_columns<kTransposed, kFrom, true>(product, rows, vectors);
  }
  multiply_columns<kTransposed, kFrom, false>(product, rows, vectors);
}

// Number of columns of b that multiply_stored() reads at a time.
template <class T>
inline constexpr std::int64_t kWideColumns = 512 / sizeof(T);

// Returns whether multiply_stored() supports a product of this size.
template <class T>
bool multiplies_stored(std::int64_t rows, std::int64_t width) {
  return rows <= 2 * kTileRows && width % (kTileVectors * kLanes<T>) == 0;
}

// Calls f(row, count) once for all rows. If they do not fit into one tile, calls it for two tiles of similar height.
template <class F>
void for_each_tile(int rows, F&& f) {
  const int first = rows <= kTileRows ? rows : (rows + 1) / 2;
  with_count<kTileRows>(first, [&](auto count) { f(0, count); });
  if (first < rows) with_count<kTileRows>(rows - first, [&](auto count) { f(first, count); });
}

// Computes the columns [column, end) of c from b in memory, 16 KiB of b at a time, so that rows of b are read whole and in order. The sums of tiles that are not in
// registers stay in the first-level cache.
template <int Rows, class T, class B>
void multiply_wide_rows(const Product<T, B>& product, int row, std::int64_t column, std::int64_t end) {
  constexpr std::int64_t kTile = kTileVectors * kLanes<T>, kTerms = 16384 / (kWideColumns<T> * static_cast<std::int64_t>(sizeof(B)));
  struct Tile {
    Vector<T> sums[Rows][kTileVectors];
  } tiles[kWideColumns<T> / kTile] = {}, earlier_runs[kWideColumns<T> / kTile] = {};
  std::int64_t run_end = first_run_end(product);
  for (std::int64_t term = 0, last = 0; term < product.depth; term = last) {
    last = term + kTerms < run_end ? term + kTerms : run_end;
    const bool ends = last == run_end && last < product.depth;  // true: a run ends here, but the sum does not
    Tile *tile = tiles, *earlier = earlier_runs;
    for (std::int64_t j = column; j < end; j += kTile, ++tile, ++earlier) {
      Tile in_registers = *tile;
      add_terms<Rows, kTileVectors, false, From::memory>(product, row, j, term, last, in_registers.sums);
      if (ends) end_run<Rows, kTileVectors, T>(in_registers.sums, earlier->sums);
      *tile = in_registers;
    }
    if (ends) run_end = next_run_end(product, last);
  }
  Tile *tile = tiles, *earlier = earlier_runs;
  for (; column < end; column += kTile, ++tile, ++earlier) {
    add_vectors<Rows, kTileVectors, T>(earlier->sums, tile->sums);
    store_tile(product, row, column, tile->sums);
  }
}

// Computes c [rows, width] from b in memory. b is read once, without a converted or packed copy. If only_finite, NaN and infinities of b count as 0.
template <class T, class B>
void multiply_stored(const Product<T, B>& product, int rows, std::int64_t width, bool only_finite) {
  constexpr std::int64_t kTile = kTileVectors * kLanes<T>;
  if (only_finite) {
    for (std::int64_t column = 0; column < width; column += kTile) {
      for (int row = 0; row < rows; ++row) multiply_tile<1, kTileVectors, false, From::memory_finite, true>(product, row, column);
    }
    return;
  }
  for (std::int64_t column = 0; column < width; column += kWideColumns<T>) {
    const std::int64_t end = column + kWideColumns<T> < width ? column + kWideColumns<T> : width;
    for_each_tile(rows, [&](int row, auto count) { multiply_wide_rows<count()>(product, row, column, end); });
  }
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
