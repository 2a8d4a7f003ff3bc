// The kernel of forward mode, sdpa_jvp(). A prime marks a tangent:
// out'[t] = sum_s drop(p)[t,s] (score'[t,s] v[s] + v'[s]) - lse'[t] out[t],  lse'[t] = sum_s p[t,s] score'[t,s]      (docs/maths.md, eq. 8a-8c)
//
// Loops, outermost first:
//   key block: k and k' as panels, v and v' as rows stay in the second-level cache
//     strip of rows, panel of keys (tangent_tiles.h): <q, k> and then <q', k> + <q, k'> are computed, each as one tile of sums in registers; p and p score' are
//     stored in the first-level cache
//     out' of the strip += p score' v + p v'
#include "core/interrupted.h"
#include "cpu/sdpa/kernels.h"
#include "cpu/sdpa/score_tangents.h"
#include "cpu/sdpa/tangent_tiles.h"
#include "cpu/sdpa/task_rows.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// For a row with |lse| above this bound, the kernel first computes the largest score and subtracts it instead of lse. With fused multiply-add, exp(score - lse)
// has only the rounding errors of the score and of lse, and the error of lse cancels in p / sum p. So the bound only prevents overflow. Without fused
// multiply-add, the product of a score and the scale is rounded too, and this error grows with |score|. So the bound is small.
constexpr int kLargestLse = kFused ? 1 << 20 : 32;

template <class T>
class Jvp {
 public:
  Jvp(const JvpTask& task, void* memory) : task_(task), scale_(task) { JvpScratch<T>::layout(task, memory, s_); }

  void run() {
    load_rows();
    for (std::int64_t first = 0; first < task_.keys; first += s_.keys) {
      const std::int64_t count = smaller(s_.keys, task_.keys - first);
      if (interrupted()) return;
      if (of_rows().keys_of(0, task_.rows, first, count).empty()) continue;
      load_keys(first, count);
      for (std::int64_t strip = 0; strip < task_.rows; strip += kStripRows)
        multiply_strip(strip, static_cast<int>(smaller(kStripRows, task_.rows - strip)), first, count);
    }
    for (std::int64_t i = 0; i < task_.rows; ++i) finish_row(i);
  }

 private:
  TaskRows<T> of_rows() const { return {task_, s_.rows, s_.spans, s_.stride}; }

  void load_rows() {
    bool large = false;
    Row next{task_.first_row, task_.first_row / task_.queries, task_.first_row % task_.queries};
    for (std::int64_t i = 0; i < task_.rows; ++i) {
      const Row row = s_.rows[i] = next;
      next = next_row(row, task_.queries);
      const T lse = *row_of(task_.lse, static_cast<const T*>(task_.lse.data), row);
      s_.spans[i] = lse == -kInfinity<T> ? KeyRange{0, 0} : narrow_range_of(task_, row);
      s_.values[i] = {.shift = 0, .lse = lse == -kInfinity<T> ? T{0} : lse, .inverse = 1, .lse_tangent = 0, .delta = 0, .phi = 0};
      large |= too_large(lse);
    }
    const auto rows = static_cast<int>(task_.rows);
    of_rows().load(task_.q, 0, rows, task_.qk_width, s_.qk_padded, scale_.power, s_.q);
    if (task_.tangents.q.data != nullptr) of_rows().load(task_.tangents.q, 0, rows, task_.qk_width, s_.qk_padded, scale_.power, s_.q_tangent);
    for (T* array : {s_.l, s_.m}) clear(array, 0, task_.rows);
    clear(s_.sums, 0, task_.rows * s_.v_padded);
    if (s_.own_out) clear(s_.out, 0, task_.rows * s_.v_padded);
    if (large) find_references();
  }

  static bool too_large(T lse) { return (lse > kLargestLse || lse < -kLargestLse) && lse * T{0} == 0; }

  // For each row with a large |lse|: sets `shift` to the row's largest score. Sets lse to the difference between the scaled sink logit and this score if the
  // sink logit is larger, else to 0.
  void find_references() {
    for (std::int64_t i = 0; i < task_.rows; ++i) {
      if (too_large(s_.values[i].lse)) s_.values[i].shift = -kInfinity<T>;
    }
    for (std::int64_t first = 0; first < task_.keys; first += s_.keys) {
      const std::int64_t count = smaller(s_.keys, task_.keys - first);
      load_keys(first, count);
      for (std::int64_t i = 0; i < task_.rows; ++i) {
        const KeyRange own = of_rows().part(i, first, count);
        if (!too_large(s_.values[i].lse) || own.empty()) continue;
        of_rows().multiply_panels(s_.q + i * s_.qk_padded, s_.qk_padded, s_.k_panels, task_.qk_width, 1, first, own, of_rows().blocks_of(i, 1), s_.p);
        finish_scores<T>(task_, s_.rows[i], scale_.factor, first, own.first, own.last, s_.p, nullptr, s_.bytes);
        const T largest = largest_of(s_.p, own.first / kLanes<T> * kLanes<T>, round_up(own.last, kLanes<T>));
        s_.values[i].shift = larger(broadcast(largest), broadcast(s_.values[i].shift))[0];
      }
    }
    for (std::int64_t i = 0; i < task_.rows; ++i) {
      RowValues<T>& row = s_.values[i];
      if (!too_large(row.lse)) continue;
      if (row.shift == -kInfinity<T>) {  // no key has a score above -infinity, so lse equals the sink logit
        row.shift = 0;
        continue;
      }
      const T above = sink_above(sink_of<T>(task_, s_.rows[i]), row.shift, factor_of_scores<T>(task_, scale_));
      row.lse = above > 0 ? above : T{0};
    }
  }

  void load_keys(std::int64_t first, std::int64_t count) {
    const TaskRows<T> rows = of_rows();
    rows.pack_keys(task_.k, first, count, task_.qk_width, s_.lines, s_.k_panels);
    if (task_.tangents.k.data != nullptr) rows.pack_keys(task_.tangents.k, first, count, task_.qk_width, s_.lines, s_.k_tangent_panels);
    v_finite_ = rows.copy_keys(task_.v, first, count, task_.v_width, s_.v_padded, s_.v);
    v_tangent_finite_ = task_.tangents.v.data == nullptr || rows.copy_keys(task_.tangents.v, first, count, task_.v_width, s_.v_padded, s_.v_tangent);
  }

  void multiply_strip(std::int64_t strip, int count, std::int64_t first, std::int64_t key_count) {
    const TaskRows<T> rows = of_rows();
    const KeyRange keys = rows.keys_of(strip, strip + count, first, key_count);
    if (keys.empty()) return;
    TangentStrip<T> tiles(task_, scale_, s_, strip, count, first);
    bool in_tiles[kStripRows], any = false, all = true;
    for (int i = 0; i < count; ++i) {
      tiles.own[i] = rows.part(strip + i, first, key_count);
      in_tiles[i] = in_tiles_of(strip + i);
      any |= in_tiles[i], all &= in_tiles[i];
    }
    tiles.blocks = rows.blocks_of(strip, count);
    // Tiles always contain all rows of the strip, so the bits of a row do not depend on whether other rows are computed in registers or in memory.
    if (any) weigh_tiles(tiles, keys);
    for (int i = 0; i < count; ++i) {
      if (in_tiles[i]) s_.l[strip + i] += sum_of_lanes<T>(tiles.l[i]), s_.m[strip + i] += sum_of_lanes<T>(tiles.m[i]);
    }
    for (int i = 0, end = 0; i < count && !all; i = end) {
      for (end = i + 1; end < count && in_tiles[end] == in_tiles[i];) ++end;
      if (!in_tiles[i]) weigh_in_memory(strip + i, end - i, i, first, key_count, keys, tiles.blocks);
    }
    const auto add = [&](const T* weights, const T* values, T* sums) {
      multiply<false, From::second_cache>(Product<T>{.depth = keys.last - keys.first,
                                                     .a = weights + keys.first,
                                                     .a_stride = s_.stride,
                                                     .b = values + keys.first * s_.v_padded,
                                                     .b_stride = s_.v_padded,
                                                     .c = sums + strip * s_.v_padded,
                                                     .c_stride = s_.v_padded,
                                                     .add = true,
                                                     .first_run = first_run_from(keys.first)},
                                          count, static_cast<int>(s_.v_padded / kLanes<T>));
    };
    add(s_.t, s_.v, s_.sums);
    if (task_.tangents.v.data != nullptr) add(s_.p, s_.v_tangent, s_.sums);
    if (s_.own_out) add(s_.p, s_.v, s_.out);
    if (!v_finite_ || !v_tangent_finite_) add_non_finite_values(strip, count, first, key_count);
  }

  // Returns whether p and p score' of a row are computed in registers. The answer depends on the row alone.
  bool in_tiles_of(std::int64_t index) const {
    const RowValues<T>& row = s_.values[index];
    return task_.softcap <= 0 && !task_.dropout && row.lse * T{0} == 0 && row.shift == 0 && kind_of(task_, s_.rows[index]) == RowKind::masked;
  }

  // Computes p and p score' by loops over arrays in memory, for `count` rows from row `index` of the task on. This row is row `place` of its strip.
  void weigh_in_memory(std::int64_t index, int count, int place, std::int64_t first, std::int64_t key_count, KeyRange keys, const StripBlocks& blocks) {
    const TaskRows<T> rows = of_rows();
    const T* const q = s_.q + index * s_.qk_padded;
    T *p = s_.p + place * s_.stride, *t = s_.t + place * s_.stride;
    const bool of_q = task_.tangents.q.data != nullptr, of_k = task_.tangents.k.data != nullptr;
    rows.multiply_panels(q, s_.qk_padded, s_.k_panels, task_.qk_width, count, first, keys, blocks, p);
    if (of_q) rows.multiply_panels(s_.q_tangent + index * s_.qk_padded, s_.qk_padded, s_.k_panels, task_.qk_width, count, first, keys, blocks, t);
    if (of_k) rows.multiply_panels(q, s_.qk_padded, s_.k_tangent_panels, task_.qk_width, count, first, keys, blocks, t, of_q);
    for (int i = 0; i < count; ++i, p += s_.stride, t += s_.stride) {
      const KeyRange own = rows.part(index + i, first, key_count);
      if (!of_q && !of_k) clear(t, keys.first / kLanes<T> * kLanes<T>, round_up(keys.last, kLanes<T>));
      if (own.empty()) {
        clear(p, keys.first, keys.last), clear(t, keys.first, keys.last);
        continue;
      }
      weigh_row(index + i, first, own, p, t);
      clear(p, keys.first, own.first), clear(p, own.last, keys.last);
      clear(t, keys.first, own.first), clear(t, own.last, keys.last);
    }
  }

  // Replaces the products in p and t by drop(p) and drop(p) score', and adds p and p score' to the row's sums.
  void weigh_row(std::int64_t index, std::int64_t first, KeyRange own, T* p, T* t) {
    const Row& row = s_.rows[index];
    const RowValues<T>& values = s_.values[index];
    const PendingFactors<T> pending = finish_tangents<T>(task_, task_.tangents, row, scale_, first, own, p, t, {s_.softcap_derivative, s_.curvature, s_.bytes});
    if (values.lse * T{0} != 0) return weigh_non_finite_row(index, own, p, t);
    Vector<T> l{}, m{};
    for_each_weight<T>(own, values, T{0}, pending, scale_, p, t, [&]<int kCount>(std::int64_t i, const Vector<T>(&weights)[kCount], const Vector<T>(&tangents)[kCount]) {
#pragma GCC unroll 4
      for (int j = 0; j < kCount; ++j) {
        const Vector<T> weighted = weights[j] * tangents[j];
        store_vector<T>(weights[j], p + i + j * kLanes<T>), store_vector<T>(weighted, t + i + j * kLanes<T>);
        l += weights[j], m = multiply_add<T>(weights[j], tangents[j], m);
      }
    });
    s_.l[index] += sum_of_lanes<T>(l), s_.m[index] += sum_of_lanes<T>(m);
    if (!task_.dropout) return;
    const std::uint8_t* const keep = keep_bytes(task_, row, first, own.first, own.last, s_.bytes);
    drop_keys(task_, keep, own, p), drop_keys(task_, keep, own, t);
  }

  // Computes a row whose lse is not finite, in which p is NaN for every key with a score above -infinity. On entry p holds the scores.
  void weigh_non_finite_row(std::int64_t index, KeyRange own, T* p, T* t) {
    for (std::int64_t s = own.first; s < own.last; ++s) {
      const T weight = p[s] == -kInfinity<T> ? T{0} : T{0} * s_.values[index].lse;
      p[s] = t[s] = weight;
      s_.l[index] += weight, s_.m[index] += weight;
    }
  }

  // Adds the NaN and infinities of v and v' to the rows that attend to their keys, and to no other rows. The products used copies in which they are 0.
  void add_non_finite_values(std::int64_t strip, int count, std::int64_t first, std::int64_t key_count) {
    for (int i = 0; i < count; ++i) {
      const Row& row = s_.rows[strip + i];
      const KeyRange own = of_rows().part(strip + i, first, key_count);
      for (std::int64_t s = own.first; s < own.last; ++s) {
        if (!attends_to(task_, row, first + s)) continue;
        const auto add = [&](const HeadView& view, T weight, T* sums) {
          with_storage<T>(task_.dtype, view.data, [&](auto* data) {
            add_non_finite<T>(data + (first + s) * view.row, view.column, task_.v_width, weight, sums + (strip + i) * s_.v_padded);
          });
        };
        const T p = s_.p[i * s_.stride + s], t = s_.t[i * s_.stride + s];
        if (!v_finite_ && kind_of(task_, row) != RowKind::uniform) add(task_.v, t, s_.sums);
        if (!v_finite_ && s_.own_out) add(task_.v, p, s_.out);
        if (!v_tangent_finite_) add(task_.tangents.v, p, s_.sums);
      }
    }
  }

  void finish_row(std::int64_t index) {
    const Row& row = s_.rows[index];
    RowValues<T>& values = s_.values[index];
    const T of_keys = s_.l[index], of_sink = sink_weight(task_, row, values, scale_), sum = of_keys + of_sink;
    T* const out_tangent = s_.sums + index * s_.v_padded;
    if (sum != 0) {
      values.inverse = 1 / sum;
      values.lse_tangent = (s_.m[index] + (of_sink == 0 ? T{0} : of_sink * sink_tangent_of<T>(task_.tangents, row))) * values.inverse;
    }
    if (of_keys == 0) {  // the gradients of an empty row are 0, even the gradient of its sink logit
      clear(out_tangent, 0, s_.v_padded);
      values.inverse = 0;
    } else {
      finish_out(index, out_tangent);
    }
    if (task_.out_tangent.data != nullptr)
      narrow_row<T>(task_.dtype, out_tangent, task_.v_width, T{1}, task_.out_tangent.data, row.head * task_.out_tangent.head + row.query * task_.out_tangent.row,
                  task_.out_tangent.column);
    if (task_.lse_tangent.data != nullptr)
      static_cast<T*>(task_.lse_tangent.data)[row.head * task_.lse_tangent.head + row.query * task_.lse_tangent.row] = values.lse_tangent;
    if (task_.row_values != nullptr) static_cast<RowValues<T>*>(task_.row_values)[task_.first_row + index] = values;
  }

  // Computes out' = sums / l - lse' out, and delta and phi.
  void finish_out(std::int64_t index, T* out_tangent) {
    RowValues<T>& values = s_.values[index];
    const Row& row = s_.rows[index];
    T* const own = s_.out + index * s_.v_padded;
    const T* const out = s_.own_out ? own : of_rows().line_of(task_.out, row, task_.v_width, s_.lines);
    for (std::int64_t d = 0; d < task_.v_width; ++d) {
      if (s_.own_out) own[d] *= values.inverse;
      out_tangent[d] *= values.inverse;
    }
    // The scores of a uniform row are constants, so lse' = 0 and `out` is not read: a NaN in `out` must not change the result.
    if (kind_of(task_, row) != RowKind::uniform) {
      for (std::int64_t d = 0; d < task_.v_width; ++d) out_tangent[d] = multiply_add<T>(-values.lse_tangent, out[d], out_tangent[d]);
    }
    if (task_.d_out.data == nullptr) return;
    const T* const d_out = of_rows().line_of(task_.d_out, row, task_.v_width, s_.lines + task_.v_width);
    for (std::int64_t d = 0; d < task_.v_width; ++d) values.delta += d_out[d] * out[d], values.phi += d_out[d] * out_tangent[d];
  }

  const JvpTask& task_;
  const ScoreScale<T> scale_;
  JvpScratch<T> s_;
  bool v_finite_ = true, v_tangent_finite_ = true;
};

}  // namespace

extern const JvpKernels jvp_kernels;
constinit const JvpKernels jvp_kernels = {scratch_bytes<JvpScratch, JvpTask>, run_kernel<Jvp, JvpTask>};

}  // namespace polyhead::cpu::POLYHEAD_ISA
