// d_v[s] = sum_t drop(p)[t,s] d_out[t]          d_p[t,s] = m[t,s] <d_out[t], v[s]>               (docs/maths.md, eq. 5, 6)
// d_score = p (d_p - delta),  delta[t] = <d_out[t], out[t]>                                       (eq. 7)
// d_q[t] = scale sum_s d_x[t,s] k[s]           d_k[s] = scale sum_t d_x[t,s] q[t]                (eq. 8, 9)
//
// Per block of keys, and within it per block of queries: p and d_x of the block are computed strip by strip and kept; d_q takes its part
// strip by strip, d_k and d_v from the whole block, reading p and d_x along their columns, so that nothing is transposed.
#include "cpu/sdpa/backward_scratch.h"
#include "cpu/sdpa/bias_rows.h"
#include "cpu/sdpa/differentiate_tiles.h"
#include "cpu/sdpa/dropout.h"
#include "cpu/sdpa/kernels.h"
#include "cpu/sdpa/pack.h"
#include "cpu/sdpa/softmax.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// exp(score - lse) with a float32 lse is off by |lse| 2^-24, twice that in powers of two. Beyond this bound a row finds its own sum again.
constexpr int kLargestExactLse = 32;

template <class T>
class Backward {
 public:
  Backward(const BackwardTask& task, void* memory)
      : task_(task), scale_(task.scale), d_q_(static_cast<T*>(task.d_q_sums)), d_q_stride_(backward_sums_stride(task.qk_width)) {
    BackwardScratch<T>::layout(task, memory, s_);
  }

  void run() {
    load_rows();
    if (d_q_ != nullptr) clear(d_q_, 0, s_.row_count * d_q_stride_);
    for (std::int64_t first = task_.first_key; first < task_.last_key; first += s_.keys) {
      const std::int64_t count = smaller(s_.keys, task_.last_key - first);
      load_keys(first, count);
      load_values(first, count);
      clear(s_.d_k, 0, count * s_.qk_padded);
      clear(s_.d_v, 0, count * s_.v_padded);
      for (std::int64_t block = 0; block < s_.row_count; block += kBlockRows) {
        multiply_block(first, count, block, static_cast<int>(smaller(kBlockRows, s_.row_count - block)));
      }
      for (std::int64_t s = 0; s < count; ++s) {
        store(task_.d_k, 0, first + s, s_.d_k + s * s_.qk_padded, task_.qk_width);
        store(task_.d_v, 0, first + s, s_.d_v + s * s_.v_padded, task_.v_width);
      }
    }
    if (task_.stream_d_bias) finish_streams();
    if (d_q_ == nullptr) return;
    for (std::int64_t i = 0; i < s_.row_count * d_q_stride_; ++i) d_q_[i] *= scale_.power;
    for (std::int64_t i = 0; i < s_.row_count && task_.store_d_q; ++i) store(task_.d_q, s_.rows[i].head, s_.rows[i].query, d_q_ + i * d_q_stride_, task_.qk_width);
  }

 private:
  static constexpr int kWidth = kLanes<T>, kPanel = kPanelKeys<T>;
  static constexpr DType kOwnStorage = sizeof(T) == 8 ? DType::f64 : DType::f32;

  void store(const MutablePlane& plane, std::int64_t head, std::int64_t row, const T* from, std::int64_t width) const {
    if (plane.data == nullptr) return;
    narrow_row<T>(task_.dtype, from, width, T{1}, plane.data, head * plane.head + row * plane.row, plane.column);
  }

  Span part(std::int64_t index, std::int64_t first, std::int64_t count) const {
    const Span& span = s_.spans[index];
    return {larger(span.first - first, 0), smaller(span.last - first, count)};
  }

  Span part_of_rows(std::int64_t begin, std::int64_t end, std::int64_t first, std::int64_t count) const {
    Span keys{count, 0};
    for (std::int64_t i = begin; i < end; ++i) {
      const Span own = part(i, first, count);
      if (!own.empty()) keys = {smaller(keys.first, own.first), larger(keys.last, own.last)};
    }
    return keys;
  }

  void load_rows() {
    bool inexact = false;
    Row next{0, 0, 0};
    for (std::int64_t i = 0; i < s_.row_count; ++i) {
      const Row r = s_.rows[i] = next;
      next = r.query + 1 < task_.queries ? Row{i + 1, r.head, r.query + 1} : Row{i + 1, r.head + 1, 0};
      s_.spans[i] = span_of(task_, r);
      s_.shift[i] = 0;
      s_.inverse[i] = 1;
      const T lse = s_.lse[i] = *row_of(task_.lse, static_cast<const T*>(task_.lse.data), r);
      if (lse == -kInfinity<T>) s_.spans[i] = {0, 0};  // an empty row
      inexact |= beyond(lse);
      const T *out = line_of(task_.out, r, s_.lines), *d_out = line_of(task_.d_out, r, s_.lines + task_.v_width);
      Vector<T> sums{};
      T sum = 0;
      std::int64_t d = 0;
      for (; d + kWidth <= task_.v_width; d += kWidth) sums += load_vector(out + d) * load_vector(d_out + d);
      for (; d < task_.v_width; ++d) sum += out[d] * d_out[d];
      s_.delta[i] = sum_of_lanes<T>(sums) + sum;
    }
    if (inexact) find_sums();
  }

  // A row of out or d_out: in place, or widened into `line`.
  const T* line_of(const Plane& plane, const Row& row, T* line) const {
    if (task_.dtype == kOwnStorage && plane.column == 1) return row_of(plane, static_cast<const T*>(plane.data), row);
    with_storage<T>(task_.dtype, plane.data, [&](auto* data) { widen_row<T>(row_of(plane, data, row), plane.column, task_.v_width, T{1}, line); });
    return line;
  }

  static bool beyond(T lse) { return (lse > kLargestExactLse || lse < -kLargestExactLse) && lse * T{0} == 0; }

  // The largest score and the sum of the rows whose lse is too large to be exact, over all keys, as in the forward pass.
  void find_sums() {
    for (std::int64_t i = 0; i < s_.row_count; ++i) {
      if (beyond(s_.lse[i])) s_.shift[i] = -kInfinity<T>, s_.inverse[i] = 0;
    }
    for (std::int64_t first = 0; first < task_.keys; first += s_.keys) {
      const std::int64_t count = smaller(s_.keys, task_.keys - first);
      load_keys(first, count);
      for (std::int64_t strip = 0; strip < s_.row_count; strip += kStripRows) {
        const int rows = static_cast<int>(smaller(kStripRows, s_.row_count - strip));
        bool any = false;
        for (int i = 0; i < rows; ++i) any |= beyond(s_.lse[strip + i]);
        const Span keys = part_of_rows(strip, strip + rows, first, count);
        if (!any || keys.empty()) continue;
        load_queries(strip, rows);
        multiply_panels(s_.q, s_.qk_padded, s_.k_panels, task_.qk_width, rows, keys, s_.p);
        for (int i = 0; i < rows; ++i) {
          const Span own = part(strip + i, first, count);
          if (beyond(s_.lse[strip + i]) && !own.empty()) extend_sum(strip + i, first, own, s_.p + i * s_.stride);
        }
      }
    }
    for (std::int64_t i = 0; i < s_.row_count; ++i) {
      if (beyond(s_.lse[i])) s_.lse[i] = 0, s_.inverse[i] = 1 / s_.inverse[i];
    }
  }

  void extend_sum(std::int64_t index, std::int64_t first, Span own, T* x) {
    const T left = finish_scores<T>(task_, s_.rows[index], scale_.factor, first, own.first, own.last, x, nullptr, s_.bytes);
    const ExpFactor<T>& unit = scale_.exp(left);
    const std::int64_t begin = own.first / kWidth * kWidth, end = round_up(own.last, kWidth);
    T &largest = s_.shift[index], &sum = s_.inverse[index];
    const T old = largest, block = largest_of(x, begin, end);
    largest = old > block ? old : block;
    const T reference = largest == -kInfinity<T> ? T{0} : largest;
    sum = sum * exp_of_negative<T>(broadcast(old - reference), unit)[0] + exponentiate(x, begin, end, reference, unit);
  }

  void load_keys(std::int64_t first, std::int64_t count) {
    with_storage<T>(task_.dtype, task_.k.data, [&](auto* data) {
      const auto* k = data + first * task_.k.row;
      pack_transposed<T>(k, task_.k.row, task_.k.column, static_cast<int>(count), task_.qk_width, T{1}, s_.lines, s_.k_panels);
      k_finite_ = copy_rows<T>(k, task_.k.row, task_.k.column, static_cast<int>(count), task_.qk_width, s_.qk_padded, T{1}, s_.k);
    });
    if (!k_finite_) drop_spoilt(s_.k, count * s_.qk_padded, s_.k);
  }

  void load_values(std::int64_t first, std::int64_t count) {
    with_storage<T>(task_.dtype, task_.v.data, [&](auto* data) {
      pack_transposed<T>(data + first * task_.v.row, task_.v.row, task_.v.column, static_cast<int>(count), task_.v_width, T{1}, s_.lines,
                         s_.v_panels);
    });
  }

  // Rows of q (times the power of two of the scale) and d_out, and what of them may be added to keys that do not see the row.
  void load_queries(std::int64_t block, int rows) {
    q_finite_ = load_block(task_.q, block, rows, task_.qk_width, s_.qk_padded, scale_.power, s_.q);
    d_out_finite_ = load_block(task_.d_out, block, rows, task_.v_width, s_.v_padded, T{1}, s_.d_out);
    if (!q_finite_) drop_spoilt(s_.q, rows * s_.qk_padded, s_.q_finite);
    if (!d_out_finite_) drop_spoilt(s_.d_out, rows * s_.v_padded, s_.d_out_finite);
  }

  bool load_block(const Plane& plane, std::int64_t block, int rows, std::int64_t width, std::int64_t padded, T factor, T* to) {
    return with_storage<T>(task_.dtype, plane.data, [&](auto* data) {
      bool finite = true;
      for (int i = 0; i < rows;) {  // rows of one head at a time
        const Row& row = s_.rows[block + i];
        const int run = static_cast<int>(smaller(rows - i, task_.queries - row.query));
        finite &= copy_rows<T>(row_of(plane, data, row), plane.row, plane.column, run, width, padded, factor, to + i * padded);
        i += run;
      }
      return finite;
    });
  }

  void multiply_panels(const T* a, std::int64_t a_stride, const T* panels, std::int64_t depth, int rows, Span keys, T* c) const {
    for_each_panel<T>(keys.first, keys.last, [&](std::int64_t panel, std::int64_t begin, int vectors) {
      const T* const b = panels + panel * depth + (begin - panel);
      multiply<false, From::second_cache, T>(
          {.depth = depth, .a = a, .a_stride = a_stride, .b = b, .b_stride = kPanel, .c = c + begin, .c_stride = s_.stride}, rows, vectors);
    });
  }

  void multiply_block(std::int64_t first, std::int64_t count, std::int64_t block, int rows) {
    const Span whole = part_of_rows(block, block + rows, first, count);
    if (whole.empty()) {
      if (task_.write_d_bias) clear_bias_rows(task_, s_.rows + block, rows, first, count, s_.d_x);
      return;
    }
    load_queries(block, rows);
    Span strips[kBlockRows / kStripRows];
    for (int strip = 0; strip < rows; strip += kStripRows) {
      const int height = static_cast<int>(smaller(kStripRows, rows - strip));
      const Span keys = strips[strip / kStripRows] = part_of_rows(block + strip, block + strip + height, first, count);
      T *p = s_.p + strip * s_.stride, *d_x = s_.d_x + strip * s_.stride;
      const bool done = differentiate_tiles(block + strip, height, first, count, keys, whole);
      if (!done && !keys.empty()) {
        multiply_panels(s_.q + strip * s_.qk_padded, s_.qk_padded, s_.k_panels, task_.qk_width, height, keys, p);
        multiply_panels(s_.d_out + strip * s_.v_padded, s_.v_padded, s_.v_panels, task_.v_width, height, keys, d_x);
      }
      for (int i = 0; i < height && !done; ++i) {
        const std::int64_t index = block + strip + i;
        differentiate_row(index, first, count, whole, part(index, first, count), p + i * s_.stride, d_x + i * s_.stride);
      }
      if (keys.empty() || d_q_ == nullptr) continue;
      multiply<false, From::second_cache, T>({.depth = keys.last - keys.first,
                                              .a = d_x + keys.first,
                                              .a_stride = s_.stride,
                                              .b = s_.k + keys.first * s_.qk_padded,
                                              .b_stride = s_.qk_padded,
                                              .c = d_q_ + (block + strip) * d_q_stride_,
                                              .c_stride = d_q_stride_,
                                              .add = true},
                                             height, static_cast<int>(s_.qk_padded / kWidth));
    }
    // One after the other: the rows of q and of d_out do not fit in the first-level cache together.
    if (task_.d_v.data != nullptr) multiply_columns(s_.p, rows, strips, whole, d_out_finite_ ? s_.d_out : s_.d_out_finite, s_.v_padded, s_.d_v);
    if (task_.d_k.data != nullptr) multiply_columns(s_.d_x, rows, strips, whole, q_finite_ ? s_.q : s_.q_finite, s_.qk_padded, s_.d_k);
    if (!k_finite_ || !q_finite_ || !d_out_finite_) add_spoilt_values(first, count, block, rows);
  }

  // Returns false where it is not for tiles: rows whose scores are more than products, whose lse is no good, or which add up their own sums.
  bool differentiate_tiles(std::int64_t index, int rows, std::int64_t first, std::int64_t count, Span keys, Span whole) {
    if (!products_alone_ || keys.empty()) return false;
    ProductStrip<T> strip{.task = task_, .scale = scale_, .s = s_, .first = index, .rows = rows, .own = {}, .inner = {0, count}};
    for (int i = 0; i < rows; ++i) {
      if (s_.lse[index + i] * T{0} != 0 || s_.shift[index + i] != 0 || in_one_block(index + i, first)) return false;
      const Span own = strip.own[i] = part(index + i, first, count);
      strip.inner = {larger(strip.inner.first, own.first), smaller(strip.inner.last, own.last)};
    }
    differentiate_strip(strip, keys, whole);
    return true;
  }

  // Whether the block has all keys of the row.
  bool in_one_block(std::int64_t index, std::int64_t first) const {
    return s_.spans[index].first >= first && s_.spans[index].last - first <= s_.keys && task_.last_key - task_.first_key == task_.keys;
  }

  // sums[key] += sum_i a[i,key] b[i] for the keys of `whole`, over the strips that have them.
  void multiply_columns(const T* a, int rows, const Span* strips, Span whole, const T* b, std::int64_t padded, T* sums) const {
    for (std::int64_t key = whole.first; key < whole.last; key += kStripRows) {
      const int height = static_cast<int>(smaller(kStripRows, whole.last - key));
      int begin = rows, end = 0;  // the rows that see any of these keys
      for (int strip = 0; strip < rows; strip += kStripRows) {
        const Span& keys = strips[strip / kStripRows];
        if (keys.empty() || keys.last <= key || keys.first >= key + height) continue;
        begin = begin < strip ? begin : strip, end = strip + kStripRows < rows ? strip + kStripRows : rows;
      }
      if (end <= begin) continue;
      const Product<T> product{.depth = end - begin, .a = a + begin * s_.stride + key, .a_stride = s_.stride, .b = b + begin * padded,
                               .b_stride = padded, .c = sums + key * padded, .c_stride = padded, .add = true};
      multiply<true, From::second_cache>(product, height, static_cast<int>(padded / kWidth));
    }
  }

  // x: products to drop(p); y: <d_out, v> to d_x without the scale's power of two. Zero in the rest of `whole`. d_score goes to d_bias.
  void differentiate_row(std::int64_t index, std::int64_t first, std::int64_t count, Span whole, Span own, T* x, T* y) {
    const Row& row = s_.rows[index];
    own.empty() ? void(own = {whole.last, whole.last}) : differentiate_keys(index, first, own, x, y);
    const Span all = task_.write_d_bias ? Span{0, count} : whole;
    clear(x, whole.first, own.first), clear(x, own.last, whole.last);
    clear(y, all.first, own.first), clear(y, own.last, all.last);
    if (task_.write_d_bias) {
      write_bias_row(task_, row, first, count, y);
    } else if (task_.d_bias.data != nullptr && kind_of(task_, row) != RowKind::Uniform) {
      add_bias_row(task_, row, first, own, y);
    }
    if (task_.d_bias.data != nullptr && scale_.factor != 1) {
      for (std::int64_t i = own.first; i < own.last; ++i) y[i] *= scale_.factor;
    }
    if (task_.softcap > 0) {
      for (std::int64_t i = own.first; i < own.last; ++i) y[i] = y[i] == T{0} ? T{0} : y[i] * s_.slope[i];
    }
  }

  // Of the keys that the row has. With d_bias y is d_score: the scale is left out.
  void differentiate_keys(std::int64_t index, std::int64_t first, Span own, T* x, T* y) {
    const Row& row = s_.rows[index];
    const T left = finish_scores<T>(task_, row, scale_.factor, first, own.first, own.last, x, s_.slope, s_.bytes);
    const T shift = s_.shift[index], lse = s_.lse[index], inverse = s_.inverse[index];
    const bool uniform = kind_of(task_, row) == RowKind::Uniform, finite = lse * T{0} == 0;
    const std::int64_t begin = own.first / kWidth * kWidth, end = round_up(own.last, kWidth);
    const std::uint8_t* keep = task_.dropout ? keep_bytes(task_, row, first, own.first, own.last, s_.bytes) : nullptr;
    const auto drop = [&](T* values) {
      const T kept = static_cast<T>(task_.dropout_scale);
      for (std::int64_t i = own.first; i < own.last; ++i) values[i] = keep[i] != 0 ? values[i] * kept : T{0};
    };
    if (keep != nullptr) drop(y);
    // A row whose keys are all in one block takes sum p and sum p d_p for exp(lse) and <d_out, out>, which carry roundings of their own:
    // the gradients of few keys are then as good as their arithmetic.
    const bool whole_row = finite && in_one_block(index, first);
    const T factor = task_.d_bias.data == nullptr ? scale_.factor : T{1};
    const bool alone = products_alone_ && !whole_row && shift == 0;  // then as in tiles: bits do not depend on the strip's other rows
    const auto probabilities = [=, &scale = scale_]<int kCount>(std::int64_t i, Vector<T>(&p)[kCount]) {
#pragma GCC unroll 4
      for (int j = 0; j < kCount; ++j) p[j] = alone ? load_vector(x + i + j * kWidth) : (load_vector(x + i + j * kWidth) - shift) * left - lse;
      alone ? exp_of_score<kCount>(p, lse, scale) : exp_of_difference<kCount>(p, T{0}, scale.natural);
#pragma GCC unroll 4
      for (int j = 0; j < kCount; ++j) {
        p[j] *= inverse;
        store_vector<T>(p[j], x + i + j * kWidth);
      }
    };
    if (finite && !whole_row) {
      const T delta = s_.delta[index];
      for_each_group<T>(begin, end, [&]<int kCount>(std::int64_t i) {
        Vector<T> p[kCount];
        probabilities(i, p);
#pragma GCC unroll 4
        for (int j = 0; j < kCount; ++j) {
          T* const at = y + i + j * kWidth;
          store_vector<T>(p[j] == T{0} ? Vector<T>{} : p[j] * (load_vector(at) - delta) * factor, at);
        }
      });
    } else {
      Vector<T> sums{}, products{};
      for_each_group<T>(begin, end, [&]<int kCount>(std::int64_t i) {
        Vector<T> p[kCount];
        probabilities(i, p);
#pragma GCC unroll 4
        for (int j = 0; j < kCount; ++j) {
          sums += p[j];
          products += p[j] == T{0} ? Vector<T>{} : p[j] * load_vector(y + i + j * kWidth);  // d_p of a masked key may be NaN
        }
      });
      if (!finite) {  // a NaN is the business of the kept keys
        for (std::int64_t i = own.first; i < own.last; ++i) x[i] = masks_keep(task_, row, first + i) ? x[i] : T{0};
      }
      T sum = 1, delta = s_.delta[index];
      if (whole_row) {
        const T of_row = sum_of_lanes<T>(sums);
        delta = of_row * T{0} == 0 ? sum_of_lanes<T>(products) / of_row : of_row;
        if (of_row * T{0} == 0) sum = of_row;  // else NaN stays with the keys that have it
      }
      const T rest = differentiate_softmax(begin, end, sum, delta, factor, x, y);
      if (whole_row && rest * T{0} == 0) {  // what the sum of d_score is off zero is the rounding of delta
        for (std::int64_t i = begin; i < end; i += kWidth) store_vector<T>(load_vector(y + i) - load_vector(x + i) * rest, y + i);
      }
    }
    if (keep != nullptr) drop(x);
    if (uniform) clear(y, own.first, own.last);
  }

  // NaN and infinities of k, q and d_out, to the pairs that have them and to no other.
  void add_spoilt_values(std::int64_t first, std::int64_t count, std::int64_t block, int rows) {
    for (int i = 0; i < rows; ++i) {
      const Row& row = s_.rows[block + i];
      const Span own = part(block + i, first, count);
      const T *p = s_.p + i * s_.stride, *d_x = s_.d_x + i * s_.stride;
      for (std::int64_t s = own.first; s < own.last; ++s) {
        if (!masks_keep(task_, row, first + s)) continue;
        const auto add = [&](const Plane& plane, std::int64_t head, std::int64_t at, std::int64_t width, T factor, T* to) {
          with_storage<T>(task_.dtype, plane.data,
                          [&](auto* data) { add_spoilt<T>(data + head * plane.head + at * plane.row, plane.column, width, factor, to); });
        };
        if (kind_of(task_, row) != RowKind::Uniform) {
          if (!k_finite_ && d_q_ != nullptr) add(task_.k, 0, first + s, task_.qk_width, d_x[s], d_q_ + (block + i) * d_q_stride_);
          if (!q_finite_) add(task_.q, row.head, row.query, task_.qk_width, d_x[s] * scale_.power, s_.d_k + s * s_.qk_padded);
        }
        if (!d_out_finite_) add(task_.d_out, row.head, row.query, task_.v_width, p[s], s_.d_v + s * s_.v_padded);
      }
    }
  }

  const BackwardTask& task_;
  const ScoreScale<T> scale_;
  BackwardScratch<T> s_;
  T* d_q_;
  std::int64_t d_q_stride_;
  // Scores are products and nothing else.
  const bool products_alone_ = task_.softcap <= 0 && task_.bias.data == nullptr && task_.d_bias.data == nullptr && task_.mask_count == 0 &&
                               task_.kinds == nullptr && !task_.dropout;
  bool k_finite_ = true, q_finite_ = true, d_out_finite_ = true;
};

template <class T>
std::int64_t backward_bytes(const BackwardTask& task) {
  BackwardScratch<T> unused;
  return BackwardScratch<T>::layout(task, nullptr, unused);
}

}  // namespace

std::int64_t sdpa_backward_scratch(const BackwardTask& task) {
  return task.dtype == DType::f64 ? backward_bytes<double>(task) : backward_bytes<float>(task);
}

void sdpa_backward(const BackwardTask& task, void* scratch) {
  task.dtype == DType::f64 ? Backward<double>(task, scratch).run() : Backward<float>(task, scratch).run();
}

}  // namespace polyhead::cpu::POLYHEAD_ISA
