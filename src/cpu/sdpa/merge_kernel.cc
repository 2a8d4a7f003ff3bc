// Merges key splits: if several tasks computed the key blocks of a row, this kernel joins the results of the key blocks in the order of the keys
// (join_blocks.h). The result of a key block is m, l and o, not lse and out, because a float32 lse is off by 1e-3 at scores of 1e4.
#include "cpu/sdpa/finish_rows.h"
#include "cpu/sdpa/join_blocks.h"
#include "cpu/sdpa/kernels.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// Joins the key blocks of up to kLanes<T> rows. The joined o of a row replaces the o of the row's first key block. `size` is the stride between the
// results of two key blocks, in elements.
template <class T>
void join_rows(T* first, std::int64_t count, std::int64_t blocks, std::int64_t size, std::int64_t v_width, const ExpFactor<T>& score_exp,
               T* m, T* l) {
  constexpr int kWidth = kLanes<T>;
  const std::int64_t stride = partial_stride(v_width);
  Vector<T> all_m{}, all_l{};
  for (std::int64_t block = 0; block < blocks; ++block) {
    const T* const from = first + block * size;
    T block_m[kWidth] = {}, block_l[kWidth] = {}, earlier[kWidth], own[kWidth];
    for (std::int64_t i = 0; i < count; ++i) block_m[i] = from[(i + 1) * stride - 2], block_l[i] = from[(i + 1) * stride - 1];
    const JoinFactors<T> factors = join<T>(load_vector(block_m), load_vector(block_l), score_exp, all_m, all_l);
    store_vector<T>(factors.earlier, earlier), store_vector<T>(factors.own, own);
    for (std::int64_t i = 0; i < count && block > 0; ++i) {
      T* const o = first + i * stride;
      for (std::int64_t d = 0; d < v_width; d += kWidth)
        store_vector<T>(join_values<T>(load_vector(o + d), earlier[i], load_vector(from + i * stride + d), own[i]), o + d);
    }
  }
  store_vector<T>(all_m, m), store_vector<T>(all_l, l);
}

template <class T>
void merge(const ForwardTask& task, std::int64_t blocks) {
  constexpr int kWidth = kLanes<T>;
  const ScoreScale<T> scale(task);
  const ExpFactor<T>& score_exp = score_exp_of(task, scale);
  const std::int64_t stride = partial_stride(task.v_width);
  T* const sums = static_cast<T*>(task.partial);
  for (std::int64_t first = 0; first < task.rows; first += kWidth) {
    const std::int64_t count = smaller(kWidth, task.rows - first);
    Row rows[kWidth];
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t number = task.first_row + first + i;
      rows[i] = {number, number / task.queries, number % task.queries};
    }
    T m[kWidth], l[kWidth], share[kWidth];
    join_rows(sums + first * stride, count, blocks, task.rows * stride, task.v_width, score_exp, m, l);
    add_sinks<T>(task, scale, score_exp.factor, rows, count, stride, m, l, sums + first * stride, share);
    store_out<T>(task, rows, count, sums + first * stride, stride, l);
    store_lse<T>(task, score_exp, rows, count, m, l, share);
  }
}

void merge_any(const ForwardTask& task, std::int64_t blocks) {
  task.dtype == DType::f64 ? merge<double>(task, blocks) : merge<float>(task, blocks);
}

}  // namespace

extern const MergeKernels merge_kernels;
constinit const MergeKernels merge_kernels = {merge_any};

}  // namespace polyhead::cpu::POLYHEAD_ISA
