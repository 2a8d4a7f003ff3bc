// Merges the key splits of each row. Split i has a reference m_i, l_i = sum exp(score - m_i) and o_i = sum exp(score - m_i) v:
//   m = max m_i,  l = sum l_i exp(m_i - m),  o = sum o_i exp(m_i - m)                      (docs/maths.md, eq. 1-4)
// Splits are added in order. A split does not store lse instead of m and l, because a float32 lse is off by 1e-3 at scores of 1e4.
#include "cpu/sdpa/finish_rows.h"
#include "cpu/sdpa/kernels.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// Merges the splits of a row into the o of its first split. `size` is the distance between splits in elements.
template <class T>
void merge_row(T* row, std::int64_t splits, std::int64_t size, std::int64_t v_width, const ExpFactor<T>& score_exp, T& m, T& l) {
  const std::int64_t at = partial_stride(v_width) - 2;
  m = -kInfinity<T>, l = 0;
  for (std::int64_t split = 0; split < splits; ++split) {
    const T *own = row + split * size + at, reference = own[0], sum = own[1];
    if (sum != 0 && reference > m) m = reference;
  }
  for (std::int64_t split = 0; split < splits; ++split) {
    T* const from = row + split * size;
    const T reference = from[at], sum = from[at + 1];
    // A split without a finite score has l = 0. Its o is 0, or NaN if it attends to a NaN in v.
    const T factor = sum == 0 ? T{0} : exp_of_negative<T>(broadcast(reference - m), score_exp)[0];
    l += sum * factor;
    for (std::int64_t d = 0; d < v_width; d += kLanes<T>) {
      const Vector<T> o = load_vector(from + d) * factor;
      store_vector<T>(split == 0 ? o : load_vector(row + d) + o, row + d);
    }
  }
}

template <class T>
void merge(const ForwardTask& task, std::int64_t splits) {
  constexpr int kWidth = kLanes<T>;
  const ScoreScale<T> scale(task);
  const ExpFactor<T>& score_exp = score_exp_of(task, scale);
  const std::int64_t stride = partial_stride(task.v_width);
  T* const sums = static_cast<T*>(task.partial);
  for (std::int64_t first = 0; first < task.rows; first += kWidth) {
    const std::int64_t count = smaller(kWidth, task.rows - first);
    Row rows[kWidth];
    T m[kWidth] = {}, l[kWidth] = {};
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t number = task.first_row + first + i;
      rows[i] = {number, number / task.queries, number % task.queries};
      merge_row(sums + (first + i) * stride, splits, task.rows * stride, task.v_width, score_exp, m[i], l[i]);
    }
    store_out<T>(task, rows, count, sums + first * stride, stride, l);
    store_lse<T>(task, score_exp, rows, count, m, l);
  }
}

void merge_any(const ForwardTask& task, std::int64_t splits) { task.dtype == DType::f64 ? merge<double>(task, splits) : merge<float>(task, splits); }

}  // namespace

extern const MergeKernels merge_kernels;
constinit const MergeKernels merge_kernels = {merge_any};

}  // namespace polyhead::cpu::POLYHEAD_ISA
