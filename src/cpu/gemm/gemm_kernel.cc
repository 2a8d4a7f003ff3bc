// c[m,n] = (add ? c[m,n] : 0) + sum_k a[m,k] b[k,n] + bias[n] over a block of rows and columns.
//
// For a panel of columns, kSumDepth terms of it at a time: these (64 x 64 float32 are 16 KiB) stay in the first-level cache while all rows
// of the block go by, 1.5 KiB for each tile of 6 rows. Sums of kSumDepth terms begin at zero in registers and are then added to the total.
#include "cpu/gemm/pack_b.h"
#include "cpu/gemm/rows_of_a.h"
#include "cpu/arena.h"
#include "cpu/tile.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// Rows that go by while a run of terms of a panel stays in the first-level cache.
inline constexpr std::int64_t kStripRows = 192;

template <class T>
struct Scratch {
  T *a, *sums;

  static std::int64_t layout(const GemmTask& task, std::int64_t rows, std::int64_t terms, void* memory, Scratch& s) {
    Arena arena(memory);
    arena.take(s.a, rows_of_a_size<T>(task, rows, terms));
    arena.take(s.sums, rows * kPanelColumns<T>);
    return arena.used();
  }
};

template <int Rows, int Columns, bool kTransposed, class T>
void multiply_rest(const Product<T>& product, int rows) {
  if constexpr (Rows > 0) {
    if (rows == Rows) return multiply_tile<Rows, Columns, kTransposed>(product, 0, 0);
    multiply_rest<Rows - 1, Columns, kTransposed>(product, rows);
  }
}

// One run of terms for all rows: `tile_step` leads from the rows of one tile in a to those of the next. after(i, rows) follows each tile, of rows from i.
template <int Columns, bool kTransposed, class T, class After>
void multiply_run(Product<T> product, std::int64_t rows, std::int64_t tile_step, const After& after) {
  // The next run lies behind this one; each tile asks for its share of it, so that no tile waits for all.
  const std::int64_t run = product.depth * product.b_stride, share = run * kGemmRows / rows;
  const T* next = product.b + run;
  std::int64_t row = 0;
  for (; row + kGemmRows <= rows; row += kGemmRows, next += share) {
    for (std::int64_t i = 0; i < share; i += 64 / static_cast<std::int64_t>(sizeof(T))) __builtin_prefetch(next + i);
    multiply_tile<kGemmRows, Columns, kTransposed>(product, 0, 0);
    after(row, kGemmRows);
    product.a += tile_step;
    product.c += kGemmRows * product.c_stride;
  }
  if (row == rows) return;
  multiply_rest<kGemmRows - 1, Columns, kTransposed>(product, static_cast<int>(rows - row));
  after(row, rows - row);
}

template <int Columns, bool kTransposed, class T, class After>
void multiply_columns(const Product<T>& product, std::int64_t rows, std::int64_t tile_step, int vectors, const After& after) {
  if constexpr (Columns > 0) {
    if (vectors == Columns) return multiply_run<Columns, kTransposed>(product, rows, tile_step, after);
    multiply_columns<Columns - 1, kTransposed>(product, rows, tile_step, vectors, after);
  }
}

// What is between the sums of a panel and c.
template <class T>
class Finish {
 public:
  Finish(const GemmTask& task, std::int64_t column) : task_(task), count_(static_cast<int>(smaller(kColumns, task.c_columns.count - column))) {
    for (int j = 0; j < kColumns; ++j) bias_[j] = 0;
    if (task.bias != nullptr) {
      with_storage<T>(task.dtype, task.bias, [&](auto* data) {
        for (int j = 0; j < count_; ++j) bias_[j] = widen(data[offset_of(task.bias_columns, column + j)]);
      });
    }
    direct_ = task.dtype == kOwnStorage<T> && adjacent(task.c_columns, column, count_);
    for (int j = 0; j < count_; ++j) columns_[j] = offset_of(task.c_columns, column + j);
  }

  void store(std::int64_t first, std::int64_t rows, const T* sums, std::int64_t stride) const {
    const int vectors = direct_ ? count_ / kWidth : 0;
    if (vectors == kGemmVectors) {
      task_.add ? store_vectors<true>(first, rows, sums, stride, kGemmVectors) : store_vectors<false>(first, rows, sums, stride, kGemmVectors);
      return;
    }
    task_.add ? store_vectors<true>(first, rows, sums, stride, vectors) : store_vectors<false>(first, rows, sums, stride, vectors);
    with_storage<T>(task_.dtype, task_.c, [&](auto* data) {
      using Storage = std::remove_const_t<std::remove_pointer_t<decltype(data)>>;
      for (std::int64_t i = 0; i < rows; ++i) {
        Storage* c = const_cast<Storage*>(data) + offset_of(task_.c_rows, first + i);
        for (int j = vectors * kWidth; j < count_; ++j) {
          T sum = sums[i * stride + j] + bias_[j];
          if (task_.add) sum += widen(c[columns_[j]]);
          narrow(sum, c + columns_[j]);
        }
      }
    });
  }

 private:
  static constexpr int kWidth = kLanes<T>, kColumns = kPanelColumns<T>;

  template <bool kAdd>
  POLYHEAD_INLINE void store_vectors(std::int64_t first, std::int64_t rows, const T* sums, std::int64_t stride, int vectors) const {
    for (std::int64_t i = 0; i < rows; ++i, sums += stride) {
      T* c = static_cast<T*>(task_.c) + offset_of(task_.c_rows, first + i) + columns_[0];
      for (int j = 0; j < vectors; ++j) {
        Vector<T> sum = load_vector(sums + j * kWidth) + load_vector(bias_ + j * kWidth);
        if constexpr (kAdd) sum += load_vector(c + j * kWidth);
        store_vector<T>(sum, c + j * kWidth);
      }
    }
  }

  const GemmTask& task_;
  int count_;
  bool direct_;
  T bias_[kColumns];
  std::int64_t columns_[kColumns];
};

template <class T>
void multiply_block(const GemmTask& task, const GemmBlock& block, void* memory) {
  constexpr int kColumns = kPanelColumns<T>;
  const Range terms = block.b.terms;
  const std::int64_t rows = block.rows.last - block.rows.first;
  Scratch<T> s;
  Scratch<T>::layout(task, rows, terms.last - terms.first, memory, s);
  const RowsOfA<T> a = rows_of_a<T>(task, block.rows, terms, s.a);
  const bool panels = a.layout == Layout::Panels;
  const std::int64_t tile_step = panels ? a.stride : kGemmRows * a.stride;
  for (std::int64_t panel = block.panels.first; panel < block.panels.last; ++panel) {
    const std::int64_t column = panel * kColumns;
    T* sums = block.sums == nullptr ? s.sums : static_cast<T*>(block.sums) + (panel - block.panels.first) * kColumns;
    const std::int64_t stride = block.sums == nullptr ? kColumns : block.sums_stride;
    const int vectors = static_cast<int>((smaller(kColumns, task.c_columns.count - column) + kLanes<T> - 1) / kLanes<T>);
    const Finish<T> finish(task, column);
    for (std::int64_t strip = 0; strip < rows; strip += kStripRows) {
      const std::int64_t count = smaller(kStripRows, rows - strip);
      std::int64_t term = terms.first;
      do {  // a sum without terms is zero
        const std::int64_t done = term - terms.first, depth = smaller(kSumDepth, terms.last - term);
        const Product<T> product{.depth = depth,
                                 .a = a.data + strip / kGemmRows * tile_step + done * (panels ? kGemmRows : 1),
                                 .a_stride = panels ? kGemmRows : a.stride,
                                 .b = packed_at<T>(block.b, panel, term),
                                 .b_stride = kColumns,
                                 .c = sums + strip * stride,
                                 .c_stride = stride,
                                 .add = !block.starts || done > 0};
        const bool last = block.ends && term + depth == terms.last;
        const auto after = [&](std::int64_t i, std::int64_t done_rows) {
          if (last) finish.store(block.rows.first + strip + i, done_rows, sums + (strip + i) * stride, stride);
        };
        panels ? multiply_columns<kGemmVectors, true>(product, count, tile_step, vectors, after)
               : multiply_columns<kGemmVectors, false>(product, count, tile_step, vectors, after);
        term += depth;
      } while (term < terms.last);
    }
  }
}

template <class T>
std::int64_t scratch_bytes(const GemmTask& task, std::int64_t rows, std::int64_t terms) {
  Scratch<T> unused;
  return Scratch<T>::layout(task, rows, terms, nullptr, unused);
}

}  // namespace

std::int64_t gemm_panel_columns(DType dtype) { return dtype == DType::f64 ? kPanelColumns<double> : kPanelColumns<float>; }

void gemm_pack(const GemmTask& task, const PackedColumns& b, Range panels, Range terms) {
  task.dtype == DType::f64 ? pack_columns<double>(task, b, panels, terms) : pack_columns<float>(task, b, panels, terms);
}

std::int64_t gemm_scratch(const GemmTask& task, std::int64_t rows, std::int64_t terms) {
  return task.dtype == DType::f64 ? scratch_bytes<double>(task, rows, terms) : scratch_bytes<float>(task, rows, terms);
}

void gemm_multiply(const GemmTask& task, const GemmBlock& block, void* scratch) {
  task.dtype == DType::f64 ? multiply_block<double>(task, block, scratch) : multiply_block<float>(task, block, scratch);
}

}  // namespace polyhead::cpu::POLYHEAD_ISA
