// Adds the partial sums of a gradient (one for each split) in the order of the splits, multiplies the total by the scale and converts it to the gradient's
// dtype (docs/maths.md, section 7).
#include "cpu/sdpa/kernels.h"
#include "cpu/storage.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

template <class T>
void add_splits(const GradientTask& task) {
  const std::int64_t stride = gradient_stride(task.width);
  for (std::int64_t row = 0; row < task.rows; ++row) {
    T* const total = static_cast<T*>(task.sums[0]) + row * stride;
    for (std::int64_t d = 0; d < task.width; d += kLanes<T>) {
      Vector<T> sum = load_vector(total + d);
      for (std::int64_t split = 1; split < task.splits; ++split) sum += load_vector(static_cast<const T*>(task.sums[split]) + row * stride + d);
      store_vector<T>(sum, total + d);
    }
    narrow_row<T>(task.dtype, total, task.width, static_cast<T>(task.factor), task.to.data, row * task.to.row, task.to.column);
  }
}

void add_splits_any(const GradientTask& task) { task.dtype == DType::f64 ? add_splits<double>(task) : add_splits<float>(task); }

}  // namespace

extern const GradientKernels gradient_kernels;
constinit const GradientKernels gradient_kernels = {add_splits_any};

}  // namespace polyhead::cpu::POLYHEAD_ISA
