// c[m,n] = (add ? c[m,n] : 0) + sum_k a[m,k] b[k,n] + bias[n] over a block of rows and columns.
//
// Panel after panel of columns, tile after tile of rows: the block's rows of a and the panel stay in the second-level cache, from where a
// tile's terms come in time. Sums of kSumDepth terms begin at zero in registers and are then added to the total.
#include "cpu/gemm/pack_b.h"
#include "cpu/gemm/rows_of_a.h"
#include "cpu/arena.h"
#include "cpu/tile.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

template <class T>
struct Scratch {
  T *a, *sums;

  static std::int64_t layout(const GemmTask& task, std::int64_t rows, std::int64_t terms, void* memory, Scratch& s) {
    Arena arena(memory);
    arena.take(s.a, rows_of_a_size<T>(task, rows, terms));
    arena.take(s.sums, kGemmRows * kPanelColumns<T>);
    return arena.used();
  }
};

// What is between the sums of a panel and c.
template <class T>
class Finish {
 public:
  Finish(const GemmTask& task, std::int64_t column) : task_(task), count_(static_cast<int>(smaller(kPanelColumns<T>, task.c_columns.count - column))) {
    for (T& bias : bias_) bias = 0;
    if (task.bias != nullptr) {
      with_storage<T>(task.dtype, task.bias, [&](auto* data) {
        for (int j = 0; j < count_; ++j) bias_[j] = widen(data[offset_of(task.bias_columns, column + j)]);
      });
    }
    direct_ = task.dtype == kOwnStorage<T> && count_ % kLanes<T> == 0 && adjacent(task.c_columns, column, count_);
    for (int j = 0; j < count_; ++j) columns_[j] = offset_of(task.c_columns, column + j);
  }

  int vectors() const { return (count_ + kLanes<T> - 1) / kLanes<T>; }
  bool direct() const { return direct_; }  // c takes whole vectors

  template <int Rows, int Columns>
  POLYHEAD_INLINE void store(std::int64_t first, Vector<T> (&sums)[Rows][Columns]) const {
    T* c[Rows];
    for (int i = 0; i < Rows; ++i) c[i] = static_cast<T*>(task_.c) + offset_of(task_.c_rows, first + i) + columns_[0];
    if (task_.add) {
      for_each_vector<Rows, Columns, T>(
          sums, [&](int i, int j, Vector<T> sum) { store_vector<T>((sum + load_vector(bias_ + j)) + load_vector(c[i] + j), c[i] + j); });
    } else {
      for_each_vector<Rows, Columns, T>(sums, [&](int i, int j, Vector<T> sum) { store_vector<T>(sum + load_vector(bias_ + j), c[i] + j); });
    }
  }

  void store(std::int64_t first, std::int64_t rows, const T* sums, std::int64_t stride) const {
    with_storage<T>(task_.dtype, task_.c, [&](auto* data) {
      using Storage = std::remove_const_t<std::remove_pointer_t<decltype(data)>>;
      for (std::int64_t i = 0; i < rows; ++i) {
        Storage* c = const_cast<Storage*>(data) + offset_of(task_.c_rows, first + i);
        for (int j = 0; j < count_; ++j) {
          T sum = sums[i * stride + j] + bias_[j];
          if (task_.add) sum += widen(c[columns_[j]]);
          narrow(sum, c + columns_[j]);
        }
      }
    });
  }

 private:
  const GemmTask& task_;
  int count_;
  bool direct_;
  T bias_[kPanelColumns<T>];
  std::int64_t columns_[kPanelColumns<T>];
};

// All terms of one tile, of c's rows from `first`: product.depth of them from product.a and product.b.
template <int Rows, int Columns, bool kTransposed, class T>
void multiply_terms(Product<T> product, const GemmBlock& block, std::int64_t first, const Finish<T>& finish) {
  T* const c = product.c;
  const std::int64_t stride = product.c_stride, terms = product.depth;
  for (std::int64_t done = 0;;) {
    Vector<T> sums[Rows][Columns];
    product.depth = smaller(kSumDepth, terms - done);
    sum_tile<Rows, Columns, kTransposed, From::second_cache>(product, 0, 0, sums);
    if (!block.starts || done > 0) {
      for_each_vector<Rows, Columns, T>(sums, [=](int i, int j, Vector<T>& sum) { sum = load_vector(c + i * stride + j) + sum; });
    }
    done += product.depth;
    if (done == terms && block.ends && finish.direct()) return finish.store(first, sums);
    for_each_vector<Rows, Columns, T>(sums, [=](int i, int j, Vector<T> sum) { store_vector<T>(sum, c + i * stride + j); });
    if (done == terms) break;
    product.a += kSumDepth * (kTransposed ? product.a_stride : 1);
    product.b += kSumDepth * product.b_stride;
  }
  if (block.ends) finish.store(first, Rows, c, stride);
}

template <bool kTransposed, class T>
void multiply_block(const GemmTask& task, const GemmBlock& block, const RowsOfA<T>& a, T* tile_sums) {
  constexpr int kColumns = kPanelColumns<T>;
  const std::int64_t rows = block.rows.last - block.rows.first, tile_step = kTransposed ? a.stride : kGemmRows * a.stride;
  for (std::int64_t panel = block.panels.first; panel < block.panels.last; ++panel) {
    const Finish<T> finish(task, panel * kColumns);
    Product<T> product{.depth = block.b.terms.last - block.b.terms.first,
                       .a = a.data,
                       .a_stride = kTransposed ? kGemmRows : a.stride,
                       .b = packed_at<T>(block.b, panel, block.b.terms.first),
                       .b_stride = kColumns,
                       .c = tile_sums,
                       .c_stride = kColumns};
    if (block.sums != nullptr) {
      product.c = static_cast<T*>(block.sums) + (panel - block.panels.first) * kColumns;
      product.c_stride = block.sums_stride;
    }
    for (std::int64_t row = 0; row < rows; row += kGemmRows) {
      with_count<kGemmVectors>(finish.vectors(), [&](auto columns) {
        with_count<kGemmRows>(static_cast<int>(smaller(kGemmRows, rows - row)), [&](auto count) {
          multiply_terms<count(), columns(), kTransposed>(product, block, block.rows.first + row, finish);
        });
      });
      product.a += tile_step;
      if (block.sums != nullptr) product.c += kGemmRows * product.c_stride;
    }
  }
}

template <class T>
void multiply_block(const GemmTask& task, const GemmBlock& block, void* memory) {
  const Range terms = block.b.terms;
  Scratch<T> s;
  Scratch<T>::layout(task, block.rows.last - block.rows.first, terms.last - terms.first, memory, s);
  const RowsOfA<T> a = rows_of_a<T>(task, block.rows, terms, s.a);
  a.layout == Layout::Panels ? multiply_block<true>(task, block, a, s.sums) : multiply_block<false>(task, block, a, s.sums);
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
