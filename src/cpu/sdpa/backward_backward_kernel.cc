// The gradient of the backward pass (docs/maths.md, eq. 8e-8h). A prime marks a tangent; lse', delta and phi of a row are the RowValues that the jvp kernel
// computed:
//   w = m <d_out, v>,  w' = m <d_out, v'>,  c = score' - lse'
//   d_v += (p c)^T d_out          d_score = p (c (w - delta) + w' - phi)          g = p (w - delta)
//   d_x = softcap' d_score + softcap'' x' g,  d_x' = softcap' g;  d_q += d_x k + d_x' k',  d_k += d_x^T q + d_x'^T q'
// The loops are those of backward_kernel.cc. Five matrix products compute numbers for each pair (query, key), and five products sum these numbers over queries
// or keys.
#include "cpu/sdpa/backward_scratch.h"
#include "cpu/sdpa/bias_rows.h"
#include "cpu/sdpa/gradient_sums.h"
#include "cpu/sdpa/kernels.h"
#include "cpu/sdpa/score_tangents.h"
#include "cpu/sdpa/task_rows.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// The scratch of the kernel. It has the arrays of the backward pass, in which the array p holds drop(p) c, and further arrays for the tangents.
template <class T>
struct BackwardBackwardScratch : BackwardScratch<T> {
  T *k_tangent_panels, *v_tangent_panels, *k_tangent, *q_tangent, *q_tangent_finite;
  T *g;          // g, later replaced by d_x' = softcap' g, for the block of rows
  T *w_tangent;  // w' for the rows of a strip
  T *curvature;

  static std::int64_t layout(const BackwardBackwardTask& task, void* memory, BackwardBackwardScratch& s) {
    const std::int64_t used = BackwardScratch<T>::layout(task, memory, s);
    Arena arena(memory == nullptr ? nullptr : static_cast<char*>(memory) + used);
    const std::int64_t of_k = task.tangents.k.data != nullptr ? s.keys : 0, of_q = task.tangents.q.data != nullptr ? kBlockRows : 0;
    arena.allocate(s.k_tangent_panels, of_k * s.qk_depth);
    arena.allocate(s.k_tangent, of_k * s.qk_padded);
    arena.allocate(s.v_tangent_panels, task.tangents.v.data != nullptr ? s.keys * s.v_depth : 0);
    arena.allocate(s.q_tangent, of_q * s.q_stride);
    arena.allocate(s.q_tangent_finite, of_q * s.q_stride);
    arena.allocate(s.g, kBlockRows * s.stride);
    arena.allocate(s.w_tangent, kStripRows * s.stride);
    arena.allocate(s.curvature, s.stride);
    return used + arena.used();
  }
};

template <class T>
class BackwardBackward {
 public:
  BackwardBackward(const BackwardBackwardTask& task, void* memory)
      : task_(task), scale_(task), values_(static_cast<const RowValues<T>*>(task.row_values) + task.first_row), sums_(task_, scale_, s_, kBlockRows) {
    BackwardBackwardScratch<T>::layout(task, memory, s_);
  }

  void run() {
    load_rows();
    sums_.run([&](std::int64_t first, std::int64_t count) { load_keys(first, count); },
              [&](std::int64_t first, std::int64_t count, std::int64_t block, int rows) { multiply_block(first, count, block, rows); });
  }

 private:
  TaskRows<T> of_rows() const { return {task_, s_.rows, s_.spans, s_.stride}; }
  bool has(const HeadView& tangent) const { return tangent.data != nullptr; }

  void load_rows() {
    Row next{task_.first_row, task_.first_row / task_.queries, task_.first_row % task_.queries};
    for (std::int64_t i = 0; i < s_.row_count; ++i) {
      const Row row = s_.rows[i] = next;
      next = next_row(row, task_.queries);
      s_.spans[i] = values_[i].inverse == 0 ? KeyRange{0, 0} : narrow_range_of(task_, row);  // an empty row, which attends to no key, has inverse 0
      if (task_.d_sink.data == nullptr || task_.first_key > 0) continue;
      const RowValues<T>& values = values_[i];
      const T weight = sink_weight(task_, row, values, scale_), p = weight == 0 || values.inverse == 0 ? T{0} : weight * values.inverse, moved = sink_tangent_of<T>(task_.tangents, row) - values.lse_tangent;
      double* const d_sink = static_cast<double*>(task_.d_sink.data) + row.head * task_.d_sink.head + row.query * task_.d_sink.row;
      *d_sink = p == 0 ? 0.0 : static_cast<double>(-p * multiply_add<T>(moved, values.delta, values.phi));
    }
  }

  void load_keys(std::int64_t first, std::int64_t count) {
    const TaskRows<T> rows = of_rows();
    const TangentViews& tangents = task_.tangents;
    rows.pack_keys(task_.k, first, count, task_.qk_width, s_.lines, s_.k_panels);
    rows.pack_keys(task_.v, first, count, task_.v_width, s_.lines, s_.v_panels);
    k_finite_ = rows.copy_keys(task_.k, first, count, task_.qk_width, s_.qk_padded, s_.k);
    if (has(tangents.k)) {
      rows.pack_keys(tangents.k, first, count, task_.qk_width, s_.lines, s_.k_tangent_panels);
      k_tangent_finite_ = rows.copy_keys(tangents.k, first, count, task_.qk_width, s_.qk_padded, s_.k_tangent);
    }
    if (has(tangents.v)) rows.pack_keys(tangents.v, first, count, task_.v_width, s_.lines, s_.v_tangent_panels);
  }

  // Copies a block of rows of q, q' and d_out. If the block contains a NaN or an infinity, also makes a second copy in which each such element is 0, for the sums
  // over queries.
  void load_queries(std::int64_t block, int rows) {
    q_finite_ = load_rows_of(task_.q, block, rows, task_.qk_width, s_.qk_padded, scale_.power, s_.q, s_.q_finite);
    d_out_finite_ = load_rows_of(task_.d_out, block, rows, task_.v_width, s_.v_padded, T{1}, s_.d_out, s_.d_out_finite);
    if (has(task_.tangents.q))
      q_tangent_finite_ = load_rows_of(task_.tangents.q, block, rows, task_.qk_width, s_.qk_padded, scale_.power, s_.q_tangent, s_.q_tangent_finite);
  }
  bool load_rows_of(const HeadView& view, std::int64_t block, int rows, std::int64_t width, std::int64_t padded, T factor, T* to, T* to_finite) const {
    const bool finite = of_rows().load(view, block, rows, width, padded, factor, to);
    if (!finite) zero_non_finite(to, rows * padded, to_finite);
    return finite;
  }

  void multiply_block(std::int64_t first, std::int64_t count, std::int64_t block, int rows) {
    const KeyRange block_keys = of_rows().keys_of(block, block + rows, first, count);
    if (block_keys.empty()) {
      if (task_.write_d_bias) clear_bias_rows(task_, s_.rows + block, rows, first, count, s_.d_x);
      return;
    }
    load_queries(block, rows);
    KeyRange strips[kBlockRows / kStripRows];
    for (int strip = 0; strip < rows; strip += kStripRows) {
      const int height = static_cast<int>(smaller(kStripRows, rows - strip));
      const KeyRange keys = strips[strip / kStripRows] = of_rows().keys_of(block + strip, block + strip + height, first, count);
      differentiate_strip(block, strip, height, keys, first, count, block_keys);
      if (keys.empty() || sums_.d_q(0) == nullptr) continue;
      const auto add = [&](const T* a, const T* b) {
        multiply<false, From::second_cache>(Product<T>{.depth = keys.last - keys.first,
                                                       .a = a + strip * s_.stride + keys.first,
                                                       .a_stride = s_.stride,
                                                       .b = b + keys.first * s_.qk_padded,
                                                       .b_stride = s_.qk_padded,
                                                       .c = sums_.d_q(block + strip),
                                                       .c_stride = sums_.d_q_stride(),
                                                       .add = true,
                                                       .first_run = first_run_from(keys.first)},
                                            height, static_cast<int>(s_.qk_padded / kLanes<T>));
      };
      add(s_.d_x, s_.k);
      if (has(task_.tangents.k)) add(s_.g, s_.k_tangent);
    }
    const auto add_columns = [&](const T* a, const T* b, std::int64_t padded, T* sums) { of_rows().multiply_columns(a, rows, strips, block_keys, b, padded, sums); };
    if (task_.d_v.data != nullptr) add_columns(s_.p, d_out_finite_ ? s_.d_out : s_.d_out_finite, s_.v_padded, sums_.d_v());
    if (task_.d_k.data != nullptr) {
      add_columns(s_.d_x, q_finite_ ? s_.q : s_.q_finite, s_.qk_padded, sums_.d_k());
      if (has(task_.tangents.q)) add_columns(s_.g, q_tangent_finite_ ? s_.q_tangent : s_.q_tangent_finite, s_.qk_padded, sums_.d_k());
    }
    if (!k_finite_ || !k_tangent_finite_ || !q_finite_ || !q_tangent_finite_ || !d_out_finite_) add_non_finite_values(first, count, block, rows);
  }

  // Computes drop(p) c, d_x and g of a strip of the block of rows. `keys` is the range that the strip's rows attend to. At the other keys in `block_keys` the
  // results are 0. Also stores d_score in d_bias.
  void differentiate_strip(std::int64_t block, int begin, int rows, KeyRange keys, std::int64_t first, std::int64_t count, KeyRange block_keys) {
    T *p = s_.p + begin * s_.stride, *d_x = s_.d_x + begin * s_.stride, *g = s_.g + begin * s_.stride, *w_tangent = s_.w_tangent;
    if (!keys.empty()) multiply_strip(block + begin, begin, rows, keys, first);
    const KeyRange written = task_.write_d_bias ? KeyRange{0, count} : block_keys;
    for (int i = 0; i < rows; ++i, p += s_.stride, d_x += s_.stride, g += s_.stride, w_tangent += s_.stride) {
      const std::int64_t index = block + begin + i;
      const Row& row = s_.rows[index];
      KeyRange own = of_rows().part(index, first, count);
      if (own.empty()) own = {written.last, written.last};
      if (own.first < own.last) differentiate_keys(index, first, own, p, g, d_x, w_tangent);
      for (T* array : {p, g}) clear(array, block_keys.first, own.first), clear(array, own.last, block_keys.last);
      clear(d_x, written.first, own.first), clear(d_x, own.last, written.last);
      if (task_.write_d_bias) {
        write_bias_row(task_, row, first, count, d_x);
      } else if (task_.d_bias.data != nullptr && kind_of(task_, row) != RowKind::uniform) {
        add_bias_row(task_, row, first, own, d_x);
      }
      for (std::int64_t s = own.first; s < own.last && task_.softcap > 0; ++s) {
        const T curved = g[s] == 0 ? T{0} : s_.curvature[s] * g[s];
        d_x[s] = d_x[s] == 0 ? curved : multiply_add<T>(d_x[s], s_.softcap_derivative[s], curved);
        g[s] = g[s] == 0 ? T{0} : g[s] * s_.softcap_derivative[s];
      }
    }
  }

  // Computes the products of a strip's rows with the keys: <q, k>, <q', k> + <q, k'>, <d_out, v> and <d_out, v'>.
  void multiply_strip(std::int64_t index, int begin, int rows, KeyRange keys, std::int64_t first) {
    const TaskRows<T> of = of_rows();
    const StripBlocks blocks = of.blocks_of(index, rows);
    const TangentViews& tangents = task_.tangents;
    const auto multiply_all = [&](const T* a, std::int64_t a_stride, const T* panels, std::int64_t depth, T* c, bool add) {
      of.multiply_panels(a + begin * a_stride, a_stride, panels, depth, rows, first, keys, blocks, c, add);
    };
    const auto clear_all = [&](T* c) {
      for (int i = 0; i < rows; ++i) clear(c + i * s_.stride, keys.first / kLanes<T> * kLanes<T>, round_up(keys.last, kLanes<T>));
    };
    T* const g = s_.g + begin * s_.stride;
    multiply_all(s_.q, s_.q_stride, s_.k_panels, s_.qk_depth, s_.p + begin * s_.stride, false);
    if (has(tangents.q)) multiply_all(s_.q_tangent, s_.q_stride, s_.k_panels, s_.qk_depth, g, false);
    if (has(tangents.k)) multiply_all(s_.q, s_.q_stride, s_.k_tangent_panels, s_.qk_depth, g, has(tangents.q));
    if (!has(tangents.q) && !has(tangents.k)) clear_all(g);
    multiply_all(s_.d_out, s_.d_out_stride, s_.v_panels, s_.v_depth, s_.d_x + begin * s_.stride, false);
    if (has(tangents.v)) {
      multiply_all(s_.d_out, s_.d_out_stride, s_.v_tangent_panels, s_.v_depth, s_.w_tangent, false);
    } else {
      clear_all(s_.w_tangent);
    }
  }

  // For the keys `own` that the row attends to, computes drop(p) c, g and d_score from the products x, t, y and y'. They overwrite x, t and y.
  void differentiate_keys(std::int64_t index, std::int64_t first, KeyRange own, T* x, T* t, T* y, T* y_tangent) {
    constexpr int kWidth = kLanes<T>;
    const Row& row = s_.rows[index];
    const RowValues<T>& values = values_[index];
    const PendingFactors<T> pending = finish_tangents<T>(task_, task_.tangents, row, scale_, first, own, x, t, {s_.softcap_derivative, s_.curvature, s_.bytes});
    const std::uint8_t* const keep = task_.dropout ? keep_bytes(task_, row, first, own.first, own.last, s_.bytes) : nullptr;
    if (keep != nullptr) drop_keys(task_, keep, own, y), drop_keys(task_, keep, own, y_tangent);
    for_each_weight<T>(own, values, values.lse_tangent, pending, scale_, x, t, [&]<int kCount>(std::int64_t i, const Vector<T>(&p)[kCount], const Vector<T>(&centred)[kCount]) {
#pragma GCC unroll 4
      for (int j = 0; j < kCount; ++j) {
        const std::int64_t at = i + j * kWidth;
        const Vector<T> w = load_vector(y + at) - values.delta, w_tangent = load_vector(y_tangent + at) - values.phi;
        const Vector<T> slope = multiply_add<T>(centred[j], w, w_tangent);
        store_vector<T>(p[j] * centred[j], x + at);
        store_vector<T>(p[j] == T{0} ? Vector<T>{} : p[j] * w, t + at);
        store_vector<T>(p[j] == T{0} ? Vector<T>{} : p[j] * slope, y + at);
      }
    });
    if (values.lse * T{0} != 0) {  // if lse is not finite, only the keys that the row attends to may become NaN
      for (std::int64_t s = own.first; s < own.last; ++s) {
        if (!attends_to(task_, row, first + s)) x[s] = t[s] = y[s] = 0;
      }
    }
    if (keep != nullptr) drop_keys(task_, keep, own, x);
    if (kind_of(task_, row) == RowKind::uniform) clear(t, own.first, own.last), clear(y, own.first, own.last);
  }

  // The products that sum over queries or keys read copies of k, k', q, q' and d_out in which each NaN and infinity is 0. This function adds what these elements
  // contribute to the gradients, only for pairs in which the query attends to the key.
  void add_non_finite_values(std::int64_t first, std::int64_t count, std::int64_t block, int rows) {
    for (int i = 0; i < rows; ++i) {
      const Row& row = s_.rows[block + i];
      if (kind_of(task_, row) == RowKind::uniform) continue;  // the scores of a uniform row are constants, whose gradients are 0
      const KeyRange own = of_rows().part(block + i, first, count);
      const T *p = s_.p + i * s_.stride, *d_x = s_.d_x + i * s_.stride, *g = s_.g + i * s_.stride;
      for (std::int64_t s = own.first; s < own.last; ++s) {
        if (!attends_to(task_, row, first + s)) continue;
        const auto add = [&](const HeadView& view, std::int64_t head, std::int64_t at, std::int64_t width, T factor, T* to) {
          with_storage<T>(task_.dtype, view.data,
                          [&](auto* data) { add_non_finite<T>(data + head * view.head + at * view.row, view.column, width, factor, to); });
        };
        T* const d_k = sums_.d_k() + s * s_.qk_padded;
        if (!k_finite_ && sums_.d_q(0) != nullptr) add(task_.k, 0, first + s, task_.qk_width, d_x[s], sums_.d_q(block + i));
        if (!k_tangent_finite_ && sums_.d_q(0) != nullptr) add(task_.tangents.k, 0, first + s, task_.qk_width, g[s], sums_.d_q(block + i));
        if (!q_finite_) add(task_.q, row.head, row.query, task_.qk_width, d_x[s] * scale_.power, d_k);
        if (!q_tangent_finite_) add(task_.tangents.q, row.head, row.query, task_.qk_width, g[s] * scale_.power, d_k);
        if (!d_out_finite_) add(task_.d_out, row.head, row.query, task_.v_width, p[s], sums_.d_v() + s * s_.v_padded);
      }
    }
  }

  const BackwardBackwardTask& task_;
  const ScoreScale<T> scale_;
  const RowValues<T>* const values_;  // numbers that the jvp kernel computed for the task's rows
  BackwardBackwardScratch<T> s_;
  GradientSums<T> sums_;
  bool k_finite_ = true, k_tangent_finite_ = true, q_finite_ = true, q_tangent_finite_ = true, d_out_finite_ = true;
};

}  // namespace

extern const BackwardBackwardKernels backward_backward_kernels;
constinit const BackwardBackwardKernels backward_backward_kernels = {scratch_bytes<BackwardBackwardScratch, BackwardBackwardTask>, run_kernel<BackwardBackward, BackwardBackwardTask>};

}  // namespace polyhead::cpu::POLYHEAD_ISA
