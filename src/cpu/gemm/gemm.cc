#include "cpu/gemm/gemm.h"

#include <algorithm>

#include "core/axis.h"
#include "core/dispatch.h"
#include "core/parallel.h"
#include "core/text.h"
#include "cpu/block_sizes.h"
#include "cpu/scratch_memory.h"
#include "cpu/select.h"

namespace polyhead::cpu {
namespace {

constexpr std::int64_t kTermBytes = 8192;
constexpr std::int64_t kMostElements = 1 << 20;  // largest number of elements of b that are packed at a time, and of sums that are kept in memory
constexpr std::int64_t kPackWork = 16;           // packing an element of b takes as long as 16 multiplications
constexpr std::int64_t kPackTerms = 128;         // number of terms of a panel that one thread packs at a time
// If a piece of work has fewer multiply-adds than this times the number of columns of a panel, another thread does not pay. AVX-512 has panels of 32 columns;
// sets with narrower vectors have fewer columns and take longer for each multiply-add.
constexpr auto kGrainPerColumn = static_cast<std::int64_t>(kLeastPieceNanoseconds * kMultiplyAddsPerNanosecond / 32);

std::int64_t divide_up(std::int64_t x, std::int64_t y) { return (x + y - 1) / y; }

// Returns the number of terms of a run. A sum of `depth` terms is cut into equal runs of at most 128 terms; each run is summed from 0 and then added to the
// total. The rounding error grows with the length of a run and with the number of runs. For matrices with many rows, runs of 384 terms have the error of MKL,
// but for few rows 2.5 times that error.
std::int64_t run_of(std::int64_t depth) {
  constexpr std::int64_t kMost = 128, kStep = 16;
  return divide_up(divide_up(depth, std::max<std::int64_t>(1, divide_up(depth, kMost))), kStep) * kStep;
}

void validate(const Gemm& product) {
  const auto& [a, b, c, bias, k_axes, add, packed] = product;
  require(a && b && c, "gemm: a, b or c is missing");
  require(a.dtype() == b.dtype() && a.dtype() == c.dtype() && (!bias || bias.dtype() == a.dtype()), "gemm: a is ", a.dtype(), ", b ",
          b.dtype(), ", c ", c.dtype(), "; all tensors must share one dtype");
  const int m_axes = a.rank() - k_axes, n_axes = b.rank() - k_axes;
  require(k_axes >= 0 && m_axes >= 0 && n_axes >= 0 && c.rank() == m_axes + n_axes && a.shape().last(k_axes) == b.shape().first(k_axes) &&
              a.shape().first(m_axes) == c.shape().first(m_axes) && b.shape().last(n_axes) == c.shape().last(n_axes),
          "gemm: a ", a.shape(), " times b ", b.shape(), " over ", k_axes, " axes does not give c ", c.shape());
  require(!bias || bias.shape() == b.shape().last(n_axes), "gemm: bias ", bias.shape(), " does not match the columns of b ", b.shape());
}

GemmAxis side_of(const Axis& axis) {
  return {.count = axis.count(), .stride = axis.count() == 1 ? 1 : axis.stride(), .run = axis.run(), .offsets = axis.table()};
}

template <class View>
Axis axis(const View& view, int first, int last) {
  return {view.shape().first(last).last(last - first), view.strides().first(last).last(last - first)};
}

// Cuts b: its rows (one for each term of a sum) into blocks of terms, and its columns into panels.
struct Columns {
  Columns(const GemmKernels& kernels_, DType dtype, const void* b, Axis depth_, Axis columns_)
      : kernels(kernels_),
        depth_axis(std::move(depth_)),
        column_axis(std::move(columns_)),
        format(kernels.format(dtype)),
        depth(depth_axis.count()),
        width(format.panel_columns),
        panels(divide_up(column_axis.count(), width)),
        run(format.amx ? format.term_step : std::max<std::int64_t>(run_of(depth), 1)),
        term_blocks(std::max<std::int64_t>(1, divide_up(depth * format.element_bytes, kTermBytes))),
        terms(std::max<std::int64_t>(1, divide_up(divide_up(depth, term_blocks), run)) * run) {
    task = {.dtype = dtype, .b = b, .run = run, .b_depth = side_of(depth_axis), .b_columns = side_of(column_axis)};
  }

  // Returns the bytes that the packed panels need for the terms of one block.
  std::int64_t bytes(std::int64_t some_panels) const { return packed_bytes(some_panels, std::min(terms, depth)); }
  std::int64_t packed_bytes(std::int64_t some_panels, std::int64_t some_terms) const {
    return some_panels * width * divide_up(some_terms, format.term_step) * format.term_step * format.element_bytes;
  }

  std::int64_t grain(std::int64_t work) const { return divide_up(kGrainPerColumn * width, std::max<std::int64_t>(work, 1)); }

  // Packs the panels in the range `some` on all threads, for the terms that `to` holds.
  void pack(const PackedColumns& to, Range some, Executor* executor) const {
    const std::int64_t count = some.last - some.first, terms_here = to.terms.last - to.terms.first;
    const std::int64_t pieces = std::max<std::int64_t>(1, divide_up(terms_here, kPackTerms));
    parallel_for(count * pieces, grain(kPackWork * width * std::min(terms_here, kPackTerms)), executor, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first, next; i < last; i = next) {
        next = std::min(last, (i / count + 1) * count);  // one call packs several neighbouring panels for the same terms
        const std::int64_t panel = some.first + i % count, term = to.terms.first + i / count * kPackTerms;
        kernels.pack(task, to, {panel, panel + next - i}, {term, std::min(term + kPackTerms, to.terms.last)});
      }
    });
  }

  const GemmKernels& kernels;
  Axis depth_axis, column_axis;
  GemmFormat format;
  GemmTask task;
  std::int64_t depth, width, panels, run, term_blocks, terms;
};

// The axes of a product c = a b. A "turned" product is computed as c^T = b^T a^T: gemm() packs its second matrix and reads its first matrix in place. So
// turning pays if a is much smaller than b and the terms of b are adjacent, as in y = x W^T for few rows of x.
struct Sides {
  Sides(const Gemm& product, bool may_turn)
      : a(product.a.data()),
        b(product.b.data()),
        a_rows(axis(product.a, 0, product.a.rank() - product.k_axes)),
        a_depth(axis(product.a, product.a.rank() - product.k_axes, product.a.rank())),
        b_depth(axis(product.b, 0, product.k_axes)),
        b_columns(axis(product.b, product.k_axes, product.b.rank())),
        c_rows(axis(product.c, 0, product.a.rank() - product.k_axes)),
        c_columns(axis(product.c, product.a.rank() - product.k_axes, product.c.rank())),
        turned(may_turn && a_rows.count() * kTurnedShare <= b_columns.count() && b_depth.table() == nullptr && (b_depth.stride() == 1 || b_depth.count() <= 1)) {
    if (!turned) return;
    std::swap(a, b), std::swap(a_rows, b_columns), std::swap(a_depth, b_depth), std::swap(c_rows, c_columns);
  }

  static constexpr std::int64_t kTurnedShare = 2;

  const void *a, *b;
  Axis a_rows, a_depth, b_depth, b_columns, c_rows, c_columns;
  bool turned;
};

// One call of gemm(): the product with its axes as strides or offset tables, and the sizes of its blocks.
class Run {
 public:
  Run(const Gemm& product, const GemmKernels& kernels, Executor* executor, const Workspace* workspace)
      : executor_(executor),
        workspace_(workspace),
        packed_(product.packed != nullptr && product.packed->kernels() == &kernels ? product.packed->panels() : nullptr),
        sides_(product, packed_ == nullptr && kernels.format(product.a.dtype()).amx),
        b_(kernels, product.a.dtype(), sides_.b, std::move(sides_.b_depth), std::move(sides_.b_columns)),
        bias_side_(product.bias ? axis(product.bias, 0, product.bias.rank()) : Axis({}, {})),
        task_(b_.task),
        rows_(sides_.c_rows.count()) {
    task_.a = sides_.a, task_.bias = product.bias ? product.bias.data() : nullptr, task_.c = product.c.data(), task_.add = product.add;
    task_.bias_of_rows = sides_.turned;
    task_.a_rows = side_of(sides_.a_rows), task_.a_depth = side_of(sides_.a_depth);
    task_.c_rows = side_of(sides_.c_rows), task_.c_columns = side_of(sides_.c_columns), task_.bias_side = side_of(bias_side_);
    task_.prefetch_bytes = sizes_.prefetch_bytes;
    const std::int64_t step = b_.format.row_step;
    const std::int64_t most = std::clamp(sizes_.row_bytes / (std::min(b_.terms, b_.depth + 1) * b_.format.element_bytes) / step * step, step, b_.format.most_rows);
    height_ = std::min(most, divide_up(divide_up(rows_, divide_up(std::max<std::int64_t>(rows_, 1), most)), step) * step);
  }

  void run() {
    if (rows_ == 0 || b_.panels == 0) return;
    // `once` is true if b is used by a single block of rows: then the thread that multiplies a panel also packs the panel. It is false if tiles of a must be
    // copied, because each thread would copy them for each panel.
    const bool copies_tiles = b_.format.amx && (task_.a_depth.stride != 1 || task_.a_depth.offsets != nullptr);
    const bool once = packed_ == nullptr && rows_ <= height_ && !copies_tiles;
    const std::int64_t panel_block = packed_ != nullptr ? b_.panels : std::clamp<std::int64_t>(kMostElements / (b_.terms * b_.width), 1, b_.panels);
    const std::int64_t stride = panel_block * b_.width;
    const std::int64_t row_block = b_.term_blocks == 1 ? rows_ : std::max(height_, kMostElements / stride / height_ * height_);
    const ScratchMemory memory(once || packed_ != nullptr ? 0 : b_.bytes(panel_block), workspace_);
    const ScratchMemory sums(b_.term_blocks == 1 ? 0 : std::min(row_block, rows_) * stride * b_.format.sum_bytes, workspace_);
    for (std::int64_t panel = 0; panel < b_.panels; panel += panel_block) {
      for (std::int64_t row = 0; row < rows_; row += row_block) {
        for (std::int64_t term = 0; term == 0 || term < b_.depth; term += b_.terms) {
          GemmBlock block{.b = {memory.get(), {term, std::min(term + b_.terms, b_.depth)}, panel},
                          .rows = {row, std::min(row + row_block, rows_)},
                          .panels = {panel, std::min(panel + panel_block, b_.panels)},
                          .starts = term == 0,
                          .ends = term + b_.terms >= b_.depth,
                          .sums = b_.term_blocks == 1 ? nullptr : sums.get(),
                          .sums_stride = stride};
          if (packed_ != nullptr) {
            block.b.panels = packed_ + b_.packed_bytes(panel_block, term);
          } else if (!once && (b_.term_blocks > 1 || row == 0)) {
            b_.pack(block.b, block.panels, executor_);
          }
          once ? pack_and_multiply(block) : multiply(block);
        }
      }
    }
  }

 private:
  // Each thread packs and multiplies a few panels at a time, so that the panels stay in the thread's second-level cache.
  void pack_and_multiply(const GemmBlock& block) {
    const std::int64_t rows = block.rows.last - block.rows.first, panels = block.panels.last - block.panels.first;
    const std::int64_t depth = block.b.terms.last - block.b.terms.first;
    const std::int64_t group = std::clamp<std::int64_t>(sizes_.panel_bytes / std::max<std::int64_t>(b_.bytes(1), 1), 1, panels);
    parallel_for(divide_up(panels, group), b_.grain((divide_up(rows, b_.format.speed) + kPackWork) * group * b_.width * depth), executor_, [&](std::int64_t first, std::int64_t last) {
      const ScratchMemory memory(b_.bytes(group), workspace_), scratch(b_.kernels.scratch(task_, rows, depth), workspace_);
      for (std::int64_t i = first; i < last; ++i) {
        const Range own{block.panels.first + i * group, std::min(block.panels.first + (i + 1) * group, block.panels.last)};
        GemmBlock some = part(block, block.rows, own);
        some.b.panels = memory.get(), some.b.first_panel = own.first;
        b_.kernels.pack(task_, some.b, own, some.b.terms);
        b_.kernels.multiply(task_, some, scratch.get());
      }
    });
  }

  void multiply(const GemmBlock& block) {
    const std::int64_t rows = block.rows.last - block.rows.first, panels = block.panels.last - block.panels.first;
    const std::int64_t depth = block.b.terms.last - block.b.terms.first, row_blocks = divide_up(rows, height_);
    const std::int64_t group = panels_of_item(row_blocks, panels, threads_of(executor_)), groups = divide_up(panels, group);
    parallel_for(row_blocks * groups, b_.grain(divide_up(height_, b_.format.speed) * group * b_.width * depth), executor_, [&](std::int64_t first, std::int64_t last) {
      const ScratchMemory scratch(b_.kernels.scratch(task_, height_, depth), workspace_);
      for (std::int64_t i = first; i < last; ++i) {
        const std::int64_t row = block.rows.first + i / groups * height_, panel = block.panels.first + i % groups * group;
        const Range some_rows{row, std::min(row + height_, block.rows.last)}, some{panel, std::min(panel + group, block.panels.last)};
        b_.kernels.multiply(task_, part(block, some_rows, some), scratch.get());
      }
    });
  }

  GemmBlock part(const GemmBlock& block, Range rows, Range panels) const {
    GemmBlock part = block;
    part.rows = rows, part.panels = panels;
    if (block.sums != nullptr) {
      const std::int64_t at = (rows.first - block.rows.first) * block.sums_stride + (panels.first - block.panels.first) * b_.width;
      part.sums = static_cast<char*>(block.sums) + at * b_.format.sum_bytes;
    }
    return part;
  }

  Executor* executor_;
  const Workspace* workspace_;
  const BlockSizes sizes_ = block_sizes();
  char* const packed_;
  Sides sides_;
  const Columns b_;
  Axis bias_side_;
  GemmTask task_;
  std::int64_t rows_, height_ = 0;
};

}  // namespace

const GemmKernels& current_gemm_kernels(DType dtype) {
  return dtype == DType::bf16 ? kernels_of<GemmKernels>(current_kernels_for_pairs()) : current_kernels_of<GemmKernels>();
}

PackedMatrix::PackedMatrix(ConstTensorView b, int k_axes, Executor* executor, const Workspace* workspace) : kernels_(nullptr) {
  require(b && is_floating(b.dtype()) && 0 <= k_axes && k_axes <= b.rank(), "PackedMatrix: b is missing, not floating or has no ", k_axes, " axes");
  kernels_ = &current_gemm_kernels(b.dtype());
  const Columns columns(*kernels_, b.dtype(), b.data(), axis(b, 0, k_axes), axis(b, k_axes, b.rank()));
  memory_ = uninitialised(DType::u8, {columns.packed_bytes(columns.panels, columns.depth)}, workspace);
  panels_ = reinterpret_cast<char*>(memory_.data<std::uint8_t>());
  for (std::int64_t term = 0; term < columns.depth; term += columns.terms) {
    const PackedColumns to{panels() + columns.packed_bytes(columns.panels, term), {term, std::min(term + columns.terms, columns.depth)}, 0};
    columns.pack(to, {0, columns.panels}, executor);
  }
}

void gemm(const Gemm& product, Executor* executor, const Workspace* workspace) {
  validate(product);
  if (!is_floating(product.a.dtype())) fail_not_floating(product.a.dtype());
  Run(product, current_gemm_kernels(product.a.dtype()), executor, workspace).run();
}

}  // namespace polyhead::cpu
