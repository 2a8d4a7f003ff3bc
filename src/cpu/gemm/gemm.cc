#include "cpu/gemm/gemm.h"

#include "core/parallel.h"
#include "core/text.h"
#include "cpu/gemm/tile.h"

namespace polyhead::cpu {
namespace {

// A tile packs both operands for itself: at 96 x 256 that is 1 element packed for about 70 multiplications.
constexpr std::int64_t kMostRows = 96, kMostColumns = 256, kLeastColumns = 32;
constexpr std::int64_t kGrainWork = 250'000;  // multiplications that are worth a thread's wake-up: about 50 us

void validate(const Gemm& product) {
  const auto& [a, b, c, bias, k_axes, add] = product;
  require(a && b && c, "gemm: a, b or c is missing");
  require(a.dtype() == b.dtype() && a.dtype() == c.dtype() && (!bias || bias.dtype() == a.dtype()), "gemm: a is ", a.dtype(), ", b ",
          b.dtype(), ", c ", c.dtype(), "; all tensors must share one dtype");
  const int m_axes = a.rank() - k_axes, n_axes = b.rank() - k_axes;
  require(k_axes >= 0 && m_axes >= 0 && n_axes >= 0 && c.rank() == m_axes + n_axes && a.shape().last(k_axes) == b.shape().first(k_axes) &&
              a.shape().first(m_axes) == c.shape().first(m_axes) && b.shape().last(n_axes) == c.shape().last(n_axes),
          "gemm: a ", a.shape(), " times b ", b.shape(), " over ", k_axes, " axes does not give c ", c.shape());
  require(!bias || bias.shape() == b.shape().last(n_axes), "gemm: bias ", bias.shape(), " does not match the columns of b ", b.shape());
}

template <class T>
void run(const Gemm& product, Executor* executor) {
  const auto& [a, b, c, bias, k_axes, add] = product;
  const int m_axes = a.rank() - k_axes, n_axes = b.rank() - k_axes;
  const Operands<T> operands{
      .a = a.data<T>(),
      .b = b.data<T>(),
      .c = c.data<T>(),
      .bias = bias ? bias.data<T>() : nullptr,
      .add = add,
      .a_rows = Axis(a.shape().first(m_axes), a.strides().first(m_axes)),
      .a_depth = Axis(a.shape().last(k_axes), a.strides().last(k_axes)),
      .b_depth = Axis(b.shape().first(k_axes), b.strides().first(k_axes)),
      .b_columns = Axis(b.shape().last(n_axes), b.strides().last(n_axes)),
      .c_rows = Axis(c.shape().first(m_axes), c.strides().first(m_axes)),
      .c_columns = Axis(c.shape().last(n_axes), c.strides().last(n_axes)),
      .bias_columns = bias ? Axis(bias.shape(), bias.strides()) : Axis({}, {}),
  };
  const std::int64_t rows = operands.c_rows.count(), columns = operands.c_columns.count(), depth = operands.a_depth.count();
  if (rows == 0 || columns == 0) return;
  // Narrower tiles for products that have few: the shape of a tile has no part in any sum.
  const std::int64_t row_tiles = (rows + kMostRows - 1) / kMostRows;
  const std::int64_t threads = executor != nullptr ? executor->num_threads() : num_threads();
  std::int64_t width = kMostColumns;
  while (width > kLeastColumns && threads > 1 && row_tiles * ((columns + width - 1) / width) < 4 * threads) width /= 2;
  const std::int64_t height = std::min(rows, kMostRows), column_tiles = (columns + width - 1) / width;
  const std::int64_t tile_work = std::max<std::int64_t>(1, height * std::min(width, columns) * std::max<std::int64_t>(1, depth));
  parallel_for(row_tiles * column_tiles, (kGrainWork + tile_work - 1) / tile_work, executor, [&](std::int64_t first, std::int64_t last) {
    TileScratch<Accumulator<T>> scratch(height, std::min(width, columns), depth);
    for (std::int64_t tile = first; tile < last; ++tile) {
      const std::int64_t row = tile / column_tiles * kMostRows, column = tile % column_tiles * width;
      compute_tile(operands, {row, std::min(row + kMostRows, rows)}, {column, std::min(column + width, columns)}, scratch);
    }
  });
}

}  // namespace

void gemm(const Gemm& product, Executor* executor) {
  validate(product);
  dispatch_floating(product.a.dtype(), [&](auto type) { run<typename decltype(type)::type>(product, executor); });
}

}  // namespace polyhead::cpu
