#include "cpu/gemm/gemm.h"

#include <algorithm>

#include "core/axis.h"
#include "core/dispatch.h"
#include "core/parallel.h"
#include "core/text.h"
#include "cpu/scratch_memory.h"
#include "cpu/select.h"

namespace polyhead::cpu {
namespace {

// 96 rows of 1024 float32 take 0.4 MiB of a second-level cache. A multiple of every tile's rows.
constexpr std::int64_t kRowBlock = 192, kRowStep = 24;
constexpr std::int64_t kTermBytes = 4096;
static_assert(kTermBytes / 8 % kSumDepth == 0, "else the length of a block would be part of the result");
constexpr std::int64_t kMostElements = 1 << 20;  // packed at a time, and as many sums
constexpr std::int64_t kPackWork = 16;           // what packing an element costs, in multiplications
// A thread's wake-up is worth 50 us: 2,000,000 multiplications with the widest vectors, less with narrower ones.
constexpr std::int64_t kGrainPerColumn = 30'000;  // times the columns of a panel

std::int64_t divide_up(std::int64_t x, std::int64_t y) { return (x + y - 1) / y; }

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

Side side_of(const Axis& axis) {
  return {.count = axis.count(), .stride = axis.count() == 1 ? 1 : axis.stride(), .run = axis.run(), .offsets = axis.table()};
}

// A product with its axes resolved and the sizes of its blocks.
class Run {
 public:
  Run(const Gemm& product, Executor* executor)
      : executor_(executor),
        kernels_(current_kernels().gemm),
        a_rows_(axis(product.a, 0, product.a.rank() - product.k_axes)),
        a_depth_(axis(product.a, product.a.rank() - product.k_axes, product.a.rank())),
        b_depth_(axis(product.b, 0, product.k_axes)),
        b_columns_(axis(product.b, product.k_axes, product.b.rank())),
        c_rows_(axis(product.c, 0, product.a.rank() - product.k_axes)),
        c_columns_(axis(product.c, product.a.rank() - product.k_axes, product.c.rank())),
        bias_columns_(product.bias ? axis(product.bias, 0, product.bias.rank()) : Axis({}, {})) {
    task_ = {.dtype = product.a.dtype(), .a = product.a.data(), .b = product.b.data(), .bias = product.bias ? product.bias.data() : nullptr,
             .c = product.c.data(), .add = product.add, .a_rows = side_of(a_rows_), .a_depth = side_of(a_depth_), .b_depth = side_of(b_depth_),
             .b_columns = side_of(b_columns_), .c_rows = side_of(c_rows_), .c_columns = side_of(c_columns_), .bias_columns = side_of(bias_columns_)};
    size_ = task_.dtype == DType::f64 ? 8 : 4;
    rows_ = task_.c_rows.count, depth_ = task_.a_depth.count;
    width_ = kernels_.panel_columns(task_.dtype), panels_ = divide_up(task_.c_columns.count, width_);
  }

  void run() {
    if (rows_ == 0 || panels_ == 0) return;
    const std::int64_t term_blocks = std::max<std::int64_t>(1, divide_up(depth_ * size_, kTermBytes));
    terms_ = std::max<std::int64_t>(1, divide_up(divide_up(depth_, term_blocks), kSumDepth)) * kSumDepth;
    height_ = divide_up(divide_up(rows_, divide_up(rows_, kRowBlock)), kRowStep) * kRowStep;
    const std::int64_t panel_block = std::clamp<std::int64_t>(kMostElements / (terms_ * width_), 1, panels_);
    const std::int64_t stride = panel_block * width_;
    const std::int64_t row_block = term_blocks == 1 ? rows_ : std::max(height_, kMostElements / stride / height_ * height_);
    const ScratchMemory packed(stride * std::min(terms_, depth_) * size_);
    const ScratchMemory sums(term_blocks == 1 ? 0 : std::min(row_block, rows_) * stride * size_);
    for (std::int64_t panel = 0; panel < panels_; panel += panel_block) {
      for (std::int64_t row = 0; row < rows_; row += row_block) {
        for (std::int64_t term = 0; term == 0 || term < depth_; term += terms_) {
          GemmBlock block{.b = {packed.get(), {term, std::min(term + terms_, depth_)}, panel},
                          .rows = {row, std::min(row + row_block, rows_)},
                          .panels = {panel, std::min(panel + panel_block, panels_)},
                          .starts = term == 0,
                          .ends = term + terms_ >= depth_,
                          .sums = term_blocks == 1 ? nullptr : sums.get(),
                          .sums_stride = stride};
          multiply(block, term_blocks > 1 || row == 0);
        }
      }
    }
  }

 private:
  template <class View>
  static Axis axis(const View& view, int first, int last) {
    return {view.shape().first(last).last(last - first), view.strides().first(last).last(last - first)};
  }

  void multiply(const GemmBlock& block, bool pack) {
    const std::int64_t rows = block.rows.last - block.rows.first, panels = block.panels.last - block.panels.first;
    const std::int64_t depth = block.b.terms.last - block.b.terms.first, row_blocks = divide_up(rows, height_);
    if (row_blocks == 1 && pack) {  // each panel is used once: by who packs it
      parallel_for(panels, grain((rows + kPackWork) * width_ * depth), executor_, [&](std::int64_t first, std::int64_t last) {
        const Range own{block.panels.first + first, block.panels.first + last};
        kernels_.pack(task_, block.b, own, block.b.terms);
        const ScratchMemory scratch(kernels_.scratch(task_, rows, depth));
        kernels_.multiply(task_, part(block, block.rows, own), scratch.get());
      });
      return;
    }
    if (pack) {
      const std::int64_t pieces = std::max<std::int64_t>(1, divide_up(depth, kSumDepth));
      parallel_for(panels * pieces, grain(kPackWork * width_ * std::min(depth, kSumDepth)), executor_, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first, next; i < last; i = next) {
          next = std::min(last, (i / panels + 1) * panels);  // panels of the same terms
          const std::int64_t panel = block.panels.first + i % panels, term = block.b.terms.first + i / panels * kSumDepth;
          kernels_.pack(task_, block.b, {panel, panel + next - i}, {term, std::min(term + kSumDepth, block.b.terms.last)});
        }
      });
    }
    // Narrower parts for products that have few: the shape of a part has no share in any sum.
    const std::int64_t threads = executor_ != nullptr ? executor_->num_threads() : num_threads();
    std::int64_t group = panels;
    while (group > 1 && threads > 1 && row_blocks * divide_up(panels, group) < 4 * threads) group = (group + 1) / 2;
    const std::int64_t groups = divide_up(panels, group);
    parallel_for(row_blocks * groups, grain(height_ * group * width_ * depth), executor_, [&](std::int64_t first, std::int64_t last) {
      const ScratchMemory scratch(kernels_.scratch(task_, height_, depth));
      for (std::int64_t i = first; i < last; ++i) {
        const std::int64_t row = block.rows.first + i / groups * height_, panel = block.panels.first + i % groups * group;
        kernels_.multiply(task_, part(block, {row, std::min(row + height_, block.rows.last)}, {panel, std::min(panel + group, block.panels.last)}), scratch.get());
      }
    });
  }

  std::int64_t grain(std::int64_t work) const { return divide_up(kGrainPerColumn * width_, std::max<std::int64_t>(work, 1)); }

  GemmBlock part(const GemmBlock& block, Range rows, Range panels) const {
    GemmBlock part = block;
    part.rows = rows, part.panels = panels;
    if (block.sums != nullptr) {
      const std::int64_t at = (rows.first - block.rows.first) * block.sums_stride + (panels.first - block.panels.first) * width_;
      part.sums = static_cast<char*>(block.sums) + at * size_;
    }
    return part;
  }

  Executor* executor_;
  const GemmKernels& kernels_;
  Axis a_rows_, a_depth_, b_depth_, b_columns_, c_rows_, c_columns_, bias_columns_;
  GemmTask task_;
  std::int64_t size_ = 0, rows_ = 0, depth_ = 0, width_ = 0, panels_ = 0, terms_ = 0, height_ = 0;
};

}  // namespace

void gemm(const Gemm& product, Executor* executor) {
  validate(product);
  if (!is_floating(product.a.dtype())) fail_not_floating(product.a.dtype());
  Run(product, executor).run();
}

}  // namespace polyhead::cpu
