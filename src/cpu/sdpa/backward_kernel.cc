// d_v[s] = sum_t drop(p)[t,s] d_out[t]          d_p[t,s] = m[t,s] <d_out[t], v[s]>               (docs/maths.md, eq. 5, 6)
// d_score = p (d_p - delta),  delta[t] = <d_out[t], out[t]>                                       (eq. 7)
// d_q[t] = scale sum_s d_x[t,s] k[s]           d_k[s] = scale sum_t d_x[t,s] q[t]                (eq. 8, 9)
// m = 1/(1 - dropout probability) for entries that dropout keeps, 0 for the others.
//
// Loops, outermost first (README.md draws them):
//   key block: k as rows and as panels, v as panels, d_k and d_v stay in the second-level cache
//     query block: its p and d_x for the key block stay in the second-level cache too
//       strip of rows, panel of keys (differentiate_tiles.h): q k^T, then d_out v^T as one tile of sums in registers; p and d_x are stored
//       d_q of the strip += d_x k
//     d_v += p^T d_out, then d_k += d_x^T q: p and d_x are read along their columns, so nothing is transposed
//   d_k and d_v of a split of rows, and d_q of a split of keys, are summed from 0 and then added to those of the splits before
#include "cpu/sdpa/backward_scratch.h"
#include "cpu/sdpa/base_kernels.h"
#include "cpu/sdpa/bias_rows.h"
#include "cpu/sdpa/differentiate_tiles.h"
#include "cpu/sdpa/dropout.h"
#include "cpu/sdpa/kernels.h"
#include "cpu/sdpa/pack.h"
#include "cpu/sdpa/sink.h"
#include "cpu/sdpa/softmax.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// With a float32 lse, exp(score - lse) has a relative error of |lse| 2^-24, twice that if computed in powers of two. Rows with |lse| above
// this bound compute their maximum and sum again.
constexpr int kLargestExactLse = 32;

// Operand: what q, k, v and d_out are multiplied as, T or bfloat16 pairs.
template <class T, class Operand = T>
class Backward {
 public:
  Backward(const BackwardTask& task, void* memory)
      : task_(task),
        scale_(task),
        d_q_total_(static_cast<T*>(task.d_q_sums)),
        d_q_(task.d_q_split != nullptr ? static_cast<T*>(task.d_q_split) : d_q_total_),
        d_q_stride_(gradient_stride(task.qk_width)) {
    BackwardScratch<T>::layout(task, memory, s_);
  }

  void run() {
    load_rows();
    const std::int64_t d_q_size = s_.row_count * d_q_stride_;
    if (d_q_ != nullptr) clear(d_q_total_, 0, d_q_size);
    for (std::int64_t first = task_.first_key; first < task_.last_key; first += s_.keys) {
      const std::int64_t count = smaller(s_.keys, task_.last_key - first);
      const bool split_begins = (first - task_.first_key) % task_.keys_per_split == 0;
      if (d_q_ != d_q_total_ && split_begins) clear(d_q_, 0, d_q_size);
      load_keys(first, count);
      load_values(first, count);
      differentiate_key_block(first, count);
      const bool split_ends = first + count == task_.last_key || (first + count - task_.first_key) % task_.keys_per_split == 0;
      if (d_q_ != d_q_total_ && split_ends) add_array(d_q_, d_q_size, d_q_total_);
    }
    if (task_.stream_d_bias) store_fence();
    if (d_q_ == nullptr || !task_.store_d_q) return;
    for (std::int64_t i = 0; i < s_.row_count; ++i)
      store(task_.d_q, s_.rows[i].head, s_.rows[i].query, d_q_total_ + i * d_q_stride_, task_.qk_width, scale_.power * scale_.factor);
  }

 private:
  static constexpr int kWidth = kLanes<T>, kPanel = kPanelKeys<T>;
  static constexpr bool kNative = std::is_same_v<Operand, Bf16Pair>;
  static constexpr std::int64_t kPerTerm = kNative ? 2 : 1;  // keys or rows

  static Operand* operand(T* array) { return reinterpret_cast<Operand*>(array); }

  void store(const MutablePlane& plane, std::int64_t head, std::int64_t row, const T* from, std::int64_t width, T factor = 1) const {
    if (plane.data == nullptr) return;
    narrow_row<T>(task_.dtype, from, width, factor, plane.data, head * plane.head + row * plane.row, plane.column);
  }

  static void add_array(const T* from, std::int64_t count, T* to) {
    for (std::int64_t i = 0; i < count; ++i) to[i] += from[i];
  }
  static void move_array(T* from, std::int64_t count, T* to) {  // to += from, from = 0
    for (std::int64_t i = 0; i < count; ++i) to[i] += from[i], from[i] = 0;
  }

  // The first split of rows adds into s_.d_k and s_.d_v themselves.
  void differentiate_key_block(std::int64_t first, std::int64_t count) {
    const std::int64_t k_size = count * s_.qk_padded, v_size = count * s_.v_padded;
    clear(d_k_ = s_.d_k, 0, k_size);
    clear(d_v_ = s_.d_v, 0, v_size);
    for (std::int64_t split = 0; split < s_.row_count; split += task_.rows_per_split) {
      const std::int64_t end = smaller(split + task_.rows_per_split, s_.row_count);
      if (split == task_.rows_per_split) {
        clear(d_k_ = s_.d_k_split, 0, k_size);
        clear(d_v_ = s_.d_v_split, 0, v_size);
      }
      for (std::int64_t block = split; block < end; block += kBlockRows)
        multiply_block(first, count, block, static_cast<int>(smaller(kBlockRows, end - block)));
      if (split > 0) move_array(d_k_, k_size, s_.d_k), move_array(d_v_, v_size, s_.d_v);
    }
    store_keys(first, count, s_.d_k, s_.d_v);
  }

  void store_keys(std::int64_t first, std::int64_t count, const T* d_k, const T* d_v) const {
    for (std::int64_t s = 0; s < count; ++s, d_k += s_.qk_padded, d_v += s_.v_padded) {
      if (task_.d_k_sums != nullptr) {
        copy(d_k, s_.qk_padded, static_cast<T*>(task_.d_k_sums) + (first - task_.first_key + s) * gradient_stride(task_.qk_width));
      } else {
        store(task_.d_k, 0, first + s, d_k, task_.qk_width, scale_.factor);
      }
      if (task_.d_v_sums != nullptr) {
        copy(d_v, s_.v_padded, static_cast<T*>(task_.d_v_sums) + (first - task_.first_key + s) * gradient_stride(task_.v_width));
      } else {
        store(task_.d_v, 0, first + s, d_v, task_.v_width);
      }
    }
  }

  static void copy(const T* from, std::int64_t count, T* to) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = from[i];
  }

  KeyRange part(std::int64_t index, std::int64_t first, std::int64_t count) const {
    const KeyRange& span = s_.spans[index];
    return {larger(span.first - first, 0), smaller(span.last - first, count)};
  }

  KeyRange keys_of_rows(std::int64_t begin, std::int64_t end, std::int64_t first, std::int64_t count) const {
    KeyRange keys{count, 0};
    for (std::int64_t i = begin; i < end; ++i) {
      const KeyRange own = part(i, first, count);
      if (!own.empty()) keys = {smaller(keys.first, own.first), larger(keys.last, own.last)};
    }
    return keys;
  }

  void load_rows() {
    bool inexact = false;
    Row next{task_.first_row, task_.first_row / task_.queries, task_.first_row % task_.queries};
    for (std::int64_t i = 0; i < s_.row_count; ++i) {
      const Row r = s_.rows[i] = next;
      next = next_row(r, task_.queries);
      s_.spans[i] = narrow_range_of(task_, r);
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
    if (task_.sink.data != nullptr) find_sink_weights();
  }

  // p of each row's sink and, in one of the key splits, its gradient.
  void find_sink_weights() {
    for (std::int64_t i = 0; i < s_.row_count; ++i) {
      const Row& row = s_.rows[i];
      const T z = sink_of<T>(task_, row);
      T& p = s_.sink[i];
      p = z == -kInfinity<T> ? T{0} : s_.inverse[i] * exp_of(sink_above(z, s_.shift[i], factor_of_scores()) - s_.lse[i], scale_);
      if (task_.d_sink.data == nullptr || task_.first_key > 0) continue;
      double* const d_sink = static_cast<double*>(task_.d_sink.data) + row.head * task_.d_sink.head + row.query * task_.d_sink.row;
      *d_sink = static_cast<double>(differentiate_sink(p, s_.delta[i]));
    }
  }

  // What finish_scores() returns for every row.
  T factor_of_scores() const { return task_.softcap > 0 || task_.bias.data != nullptr ? T{1} : scale_.factor; }

  // A row of out or d_out: in place, or widened into `line`.
  const T* line_of(const Plane& plane, const Row& row, T* line) const {
    if (task_.dtype == kOwnStorage<T> && plane.column == 1) return row_of(plane, static_cast<const T*>(plane.data), row);
    with_storage<T>(task_.dtype, plane.data, [&](auto* data) { widen_row<T>(row_of(plane, data, row), plane.column, task_.v_width, T{1}, line); });
    return line;
  }

  static bool beyond(T lse) { return (lse > kLargestExactLse || lse < -kLargestExactLse) && lse * T{0} == 0; }

  // Computes maximum and sum over all keys again, as in the forward pass, for rows whose lse is too large to be exact.
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
        const KeyRange keys = keys_of_rows(strip, strip + rows, first, count);
        if (!any || keys.empty()) continue;
        load_queries(strip, rows);
        StripBlocks blocks;
        blocks.begin(task_);
        for (int i = 0; i < rows; ++i) blocks.add(task_, s_.rows[strip + i]);
        multiply_panels(s_.q, s_.q_stride, s_.k_panels, s_.qk_depth, rows, first, keys, blocks, s_.p);
        for (int i = 0; i < rows; ++i) {
          const KeyRange own = part(strip + i, first, count);
          if (beyond(s_.lse[strip + i]) && !own.empty()) extend_sum(strip + i, first, own, s_.p + i * s_.stride);
        }
      }
    }
    for (std::int64_t i = 0; i < s_.row_count; ++i) {
      if (!beyond(s_.lse[i])) continue;
      if (s_.inverse[i] == 0 && task_.sink.data != nullptr) {  // no key has a score above -infinity: lse is the sink
        s_.shift[i] = 0, s_.inverse[i] = 1;
        continue;
      }
      const SumWithSink<T> total(s_.inverse[i], s_.shift[i], factor_of_scores(), sink_of<T>(task_, s_.rows[i]), scale_);
      s_.lse[i] = total.above, s_.inverse[i] = 1 / total.sum;
    }
  }

  void extend_sum(std::int64_t index, std::int64_t first, KeyRange own, T* x) {
    const T pending_scale = finish_scores<T>(task_, s_.rows[index], scale_.factor, first, own.first, own.last, x, nullptr, s_.bytes);
    const ExpFactor<T>& score_exp = scale_.exp(pending_scale);
    const std::int64_t begin = own.first / kWidth * kWidth, end = round_up(own.last, kWidth);
    T &largest = s_.shift[index], &sum = s_.inverse[index];
    const T old = largest, block = largest_of(x, begin, end);
    largest = old > block ? old : block;
    const T reference = largest == -kInfinity<T> ? T{0} : largest;
    sum = sum * exp_of_negative<T>(broadcast(old - reference), score_exp)[0] + exponentiate(x, begin, end, reference, score_exp);
  }

  void load_keys(std::int64_t first, std::int64_t count) {
    if constexpr (kNative) {
      const bf16* const k = static_cast<const bf16*>(task_.k.data) + first * task_.k.row;
      pack_bf16_transposed(k, task_.k.row, task_.k.column, count, task_.qk_width, kPanel, operand(s_.k_panels));
      k_finite_ = pack_bf16_rows(k, task_.k.row, task_.k.column, count, task_.qk_width, s_.qk_padded, operand(s_.k));
    } else {
      with_storage<T>(task_.dtype, task_.k.data, [&](auto* data) {
        const auto* k = data + first * task_.k.row;
        pack_transposed(StoredRows(k, task_.k, task_.qk_width, task_.keys - first, T{1}), static_cast<int>(count), s_.lines, s_.k_panels);
        k_finite_ = copy_rows<T>(k, task_.k.row, task_.k.column, static_cast<int>(count), task_.qk_width, s_.qk_padded, T{1}, s_.k);
      });
      if (!k_finite_) zero_non_finite(s_.k, count * s_.qk_padded, s_.k);
    }
  }

  void load_values(std::int64_t first, std::int64_t count) {
    if constexpr (kNative) {
      pack_bf16_transposed(static_cast<const bf16*>(task_.v.data) + first * task_.v.row, task_.v.row, task_.v.column, count, task_.v_width, kPanel,
                             operand(s_.v_panels));
    } else {
      with_storage<T>(task_.dtype, task_.v.data, [&](auto* data) {
        const StoredRows v(data + first * task_.v.row, task_.v, task_.v_width, task_.keys - first, T{1});
        pack_transposed(v, static_cast<int>(count), s_.lines, s_.v_panels);
      });
    }
  }

  // Copies rows of q, times the scale's power of two, and of d_out. If they have NaN or infinities, also makes copies with 0 in their
  // place, for the sums over rows.
  void load_queries(std::int64_t block, int rows) {
    if constexpr (kNative) {
      q_finite_ = load_pairs(task_.q, block, rows, task_.qk_width, s_.qk_padded, scale_.power, operand(s_.q), s_.qk_depth, operand(s_.q_columns));
      d_out_finite_ = load_pairs(task_.d_out, block, rows, task_.v_width, s_.v_padded, T{1}, operand(s_.d_out), s_.v_depth, operand(s_.d_out_columns));
    } else {
      q_finite_ = load_block(task_.q, block, rows, task_.qk_width, s_.qk_padded, scale_.power, s_.q);
      d_out_finite_ = load_block(task_.d_out, block, rows, task_.v_width, s_.v_padded, T{1}, s_.d_out);
      if (!q_finite_) zero_non_finite(s_.q, rows * s_.qk_padded, s_.q_finite);
      if (!d_out_finite_) zero_non_finite(s_.d_out, rows * s_.v_padded, s_.d_out_finite);
    }
  }

  // Rows as bfloat16 pairs of neighbours; `columns` receives pairs of rows, with 0 for NaN and infinities.
  bool load_pairs(const Plane& plane, std::int64_t block, int rows, std::int64_t width, std::int64_t padded, T factor, Operand* to, std::int64_t depth,
                  Operand* columns) const {
    for (int i = 0; i < rows; ++i)
      pack_bf16_neighbours(row_of(plane, static_cast<const bf16*>(plane.data), s_.rows[block + i]), plane.column, width, factor, to + i * depth);
    return pack_bf16_rows(reinterpret_cast<const bf16*>(to), 2 * depth, 1, rows, width, padded, columns);
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

  // c = a b for the panels that the mask does not skip. Skipped panels of c are not written, and no row reads them.
  void multiply_panels(const T* a, std::int64_t a_stride, const T* panels, std::int64_t depth, int rows, std::int64_t first, KeyRange keys,
                       const StripBlocks& blocks, T* c) const {
    for_each_panel<T>(keys.first, keys.last, [&](std::int64_t panel, std::int64_t begin, int vectors) {
      if (blocks.at(first + panel) == BlockKind::skip) return;
      const Operand* const b = reinterpret_cast<const Operand*>(panels) + panel * depth + (begin - panel);
      multiply<false, From::second_cache, T, Operand>(
          {.depth = depth, .a = reinterpret_cast<const Operand*>(a), .a_stride = a_stride, .b = b, .b_stride = kPanel, .c = c + begin, .c_stride = s_.stride}, rows, vectors);
    });
  }

  void multiply_block(std::int64_t first, std::int64_t count, std::int64_t block, int rows) {
    const KeyRange block_keys = keys_of_rows(block, block + rows, first, count);
    if (block_keys.empty()) {
      if (task_.write_d_bias) clear_bias_rows(task_, s_.rows + block, rows, first, count, s_.d_x);
      return;
    }
    load_queries(block, rows);
    KeyRange strips[kBlockRows / kStripRows];
    for (int strip = 0; strip < rows; strip += kStripRows) {
      const int height = static_cast<int>(smaller(kStripRows, rows - strip));
      const KeyRange keys = strips[strip / kStripRows] = keys_of_rows(block + strip, block + strip + height, first, count);
      differentiate_strip(block, strip, height, keys, first, count, block_keys);
      if (keys.empty() || d_q_ == nullptr) continue;
      const std::int64_t first_term = keys.first / kPerTerm, stride = s_.stride / kPerTerm;  // d_x is 0 beside an odd first key
      multiply<false, From::second_cache, T, Operand>({.depth = (keys.last + kPerTerm - 1) / kPerTerm - first_term,
                                                       .a = operand(kNative ? s_.d_x_pairs : s_.d_x) + strip * stride + first_term,
                                                       .a_stride = stride,
                                                       .b = operand(s_.k) + first_term * s_.qk_padded,
                                                       .b_stride = s_.qk_padded,
                                                       .c = d_q_ + (block + strip) * d_q_stride_,
                                                       .c_stride = d_q_stride_,
                                                       .add = true},
                                                      height, static_cast<int>(s_.qk_padded / kWidth));
    }
    const T* const d_out = kNative ? s_.d_out_columns : d_out_finite_ ? s_.d_out : s_.d_out_finite;
    const T* const q = kNative ? s_.q_columns : q_finite_ ? s_.q : s_.q_finite;
    // All of d_v before d_k, because the rows of d_out and of q do not fit in the first-level cache together.
    if (task_.d_v.data != nullptr)
      multiply_columns(kNative ? s_.p_columns : s_.p, rows, strips, block_keys, d_out, s_.v_padded, d_v_);
    if (task_.d_k.data != nullptr) multiply_columns(kNative ? s_.d_x_columns : s_.d_x, rows, strips, block_keys, q, s_.qk_padded, d_k_);
    if (!k_finite_ || !q_finite_ || !d_out_finite_) add_non_finite_values(first, count, block, rows);
  }

  // How a row's products become p and d_x. tiles: in registers; tiles_of_whole_row: in registers and then renormalised, because the key
  // block has all keys of the row; memory: in passes over memory. The choice depends on the row alone, so its bits do not depend on the
  // other rows of its strip.
  enum class RowPath : std::uint8_t { tiles, tiles_of_whole_row, memory };

  RowPath path_of(std::int64_t index, std::int64_t first) const {
    const bool exact = s_.lse[index] * T{0} == 0 && s_.shift[index] == 0 && s_.inverse[index] == 1;
    if (!in_tiles_ || !exact || kind_of(task_, s_.rows[index]) != RowKind::masked) return RowPath::memory;
    return in_one_block(index, first) ? RowPath::tiles_of_whole_row : RowPath::tiles;
  }

  // Computes p and d_x of a strip of the query block. `keys` is the range that its rows attend to; the rest of `block_keys` becomes 0. Also
  // stores d_score in d_bias.
  void differentiate_strip(std::int64_t block, int begin, int rows, KeyRange keys, std::int64_t first, std::int64_t count,
                           KeyRange block_keys) {
    RowPath paths[kStripRows];
    bool tiles = false, passes = false;
    TileStrip<T, Operand> strip(task_, scale_, s_, block, begin, rows, first);
    for (int i = 0; i < rows; ++i) {
      paths[i] = path_of(block + begin + i, first);
      (paths[i] == RowPath::memory ? passes : tiles) = true;
      strip.own[i] = part(block + begin + i, first, count);
      strip.in_one_block[i] = paths[i] == RowPath::tiles_of_whole_row;
    }
    strip.blocks.begin(task_);
    for (int i = 0; i < rows; ++i) strip.blocks.add(task_, s_.rows[block + begin + i]);
    // Tiles always hold all rows of the strip, so a row has the same bits whichever paths the other rows take.
    if (tiles && !keys.empty()) differentiate_tiles(strip, keys);
    T *p = s_.p + begin * s_.stride, *d_x = s_.d_x + begin * s_.stride;
    for (int i = 0, end = 0; i < rows && passes && !keys.empty(); i = end) {
      for (end = i + 1; end < rows && paths[end] == paths[i];) ++end;
      if (paths[i] != RowPath::memory) continue;
      const int row = begin + i;
      multiply_panels(s_.q + row * s_.q_stride, s_.q_stride, s_.k_panels, s_.qk_depth, end - i, first, keys, strip.blocks, p + i * s_.stride);
      multiply_panels(s_.d_out + row * s_.d_out_stride, s_.d_out_stride, s_.v_panels, s_.v_depth, end - i, first, keys, strip.blocks, d_x + i * s_.stride);
    }
    KeyRange written = task_.write_d_bias ? KeyRange{0, count} : block_keys;
    if (kNative) written = {written.first / 2 * 2, round_up(written.last, 2)};
    for (int i = 0; i < rows; ++i, p += s_.stride, d_x += s_.stride) {
      const std::int64_t index = block + begin + i;
      KeyRange own = strip.own[i];
      if (own.empty()) own = {written.last, written.last};
      if (paths[i] == RowPath::memory && own.first < own.last) differentiate_keys(index, first, own, p, d_x);
      clear(p, block_keys.first, own.first), clear(p, own.last, block_keys.last);
      clear(d_x, written.first, own.first), clear(d_x, own.last, written.last);
      const Row& row = s_.rows[index];
      if (task_.write_d_bias) {
        write_bias_row(task_, row, first, count, d_x);
      } else if (task_.d_bias.data != nullptr && kind_of(task_, row) != RowKind::uniform) {
        add_bias_row(task_, row, first, own, d_x);
      }
      for (std::int64_t s = own.first; s < own.last && task_.softcap > 0; ++s)
        d_x[s] = d_x[s] == T{0} ? T{0} : d_x[s] * s_.softcap_derivative[s];
    }
    if constexpr (kNative) pair_strip(begin, rows, block_keys);
  }

  // Rounds p and d_x of a strip to bfloat16 pairs.
  void pair_strip(int begin, int rows, KeyRange block_keys) const {
    const std::int64_t first = block_keys.first / kWidth * kWidth, last = round_up(block_keys.last, kWidth);
    for (int row = begin; row < begin + rows; row += 2) {
      const T *p = s_.p + row * s_.stride, *d_x = s_.d_x + row * s_.stride;
      const bool two = row + 1 < begin + rows;
      Operand* const pairs = operand(s_.d_x_pairs) + row * s_.stride / 2;
      round_to_bf16(d_x, first, last, 1, pairs);
      if (two) round_to_bf16(d_x + s_.stride, first, last, 1, pairs + s_.stride / 2);
      round_rows_to_bf16(p, two ? p + s_.stride : nullptr, first, last, operand(s_.p_columns) + row / 2 * s_.stride);
      round_rows_to_bf16(d_x, two ? d_x + s_.stride : nullptr, first, last, operand(s_.d_x_columns) + row / 2 * s_.stride);
    }
  }

  // Whether the key block has all keys of the row.
  bool in_one_block(std::int64_t index, std::int64_t first) const {
    // Not narrow_range_of(): the row's bits must not depend on which mask blocks are skipped.
    const KeyRange all = range_of(task_, s_.rows[index]);
    return all.first >= first && all.last - first <= s_.keys;
  }

  // sums[key] += sum_i a[i,key] b[i] for the keys of `block_keys`, where i runs over the rows of the strips that attend to the key.
  void multiply_columns(const T* a, int rows, const KeyRange* strips, KeyRange block_keys, const T* b, std::int64_t padded, T* sums) const {
    for (std::int64_t key = block_keys.first; key < block_keys.last; key += kStripRows) {
      const int height = static_cast<int>(smaller(kStripRows, block_keys.last - key));
      int begin = rows, end = 0;  // rows of the strips that attend to any of these keys
      for (int strip = 0; strip < rows; strip += kStripRows) {
        const KeyRange& keys = strips[strip / kStripRows];
        if (keys.empty() || keys.last <= key || keys.first >= key + height) continue;
        begin = begin < strip ? begin : strip, end = strip + kStripRows < rows ? strip + kStripRows : rows;
      }
      if (end <= begin) continue;
      const Product<T, Operand> product{.depth = (end - begin + kPerTerm - 1) / kPerTerm,
                                        .a = reinterpret_cast<const Operand*>(a) + begin / kPerTerm * s_.stride + key,
                                        .a_stride = s_.stride,
                                        .b = reinterpret_cast<const Operand*>(b) + begin / kPerTerm * padded,
                                        .b_stride = padded,
                                        .c = sums + key * padded,
                                        .c_stride = padded,
                                        .add = true};
      multiply<true, From::second_cache>(product, height, static_cast<int>(padded / kWidth));
    }
  }

  // For the keys `own` of the row: turns x from products <q, k> into drop(p), and y from <d_out, v> into d_score.
  void differentiate_keys(std::int64_t index, std::int64_t first, KeyRange own, T* x, T* y) {
    const Row& row = s_.rows[index];
    const T pending_scale = finish_scores<T>(task_, row, scale_.factor, first, own.first, own.last, x, s_.softcap_derivative, s_.bytes);
    const T shift = s_.shift[index], lse = s_.lse[index], inverse = s_.inverse[index], delta = s_.delta[index];
    const bool finite = lse * T{0} == 0;
    const std::int64_t begin = own.first / kWidth * kWidth, end = round_up(own.last, kWidth);
    const std::uint8_t* keep = task_.dropout ? keep_bytes(task_, row, first, own.first, own.last, s_.bytes) : nullptr;
    const auto drop = [&](T* values) {
      const T kept = static_cast<T>(task_.dropout_scale);
      for (std::int64_t i = own.first; i < own.last; ++i) values[i] = keep[i] != 0 ? values[i] * kept : T{0};
    };
    if (keep != nullptr) drop(y);
    RowSums<T> sums = first_sums(task_, s_, index);
    for_each_group<T>(begin, end, [&]<int kCount>(std::int64_t i) {
      Vector<T> p[kCount], d_score[kCount];
#pragma GCC unroll 4
      for (int j = 0; j < kCount; ++j) p[j] = (load_vector(x + i + j * kWidth) - shift) * pending_scale - lse;
      exp_of_difference<kCount>(p, T{0}, scale_.natural);
#pragma GCC unroll 4
      for (int j = 0; j < kCount; ++j) {
        p[j] *= inverse;
        d_score[j] = differentiate_score<T>(p[j], load_vector(y + i + j * kWidth), delta);
        store_vector<T>(p[j], x + i + j * kWidth), store_vector<T>(d_score[j], y + i + j * kWidth);
      }
      sums.add(p, d_score);
    });
    if (finite && in_one_block(index, first)) normalise_row(begin, end, RowFactors<T>(sums), x, y);
    for (std::int64_t i = own.first; i < own.last && !finite; ++i) {  // a NaN lse reaches only keys that the row attends to
      if (!attends_to(task_, row, first + i)) x[i] = y[i] = 0;
    }
    if (keep != nullptr) drop(x);
    if (kind_of(task_, row) == RowKind::uniform) clear(y, own.first, own.last);
  }

  // Adds NaN and infinities of k, q and d_out to the gradients of the queries and keys that attend to each other, and to no others.
  void add_non_finite_values(std::int64_t first, std::int64_t count, std::int64_t block, int rows) {
    for (int i = 0; i < rows; ++i) {
      const Row& row = s_.rows[block + i];
      const KeyRange own = part(block + i, first, count);
      const T *p = s_.p + i * s_.stride, *d_x = s_.d_x + i * s_.stride;
      for (std::int64_t s = own.first; s < own.last; ++s) {
        if (!attends_to(task_, row, first + s)) continue;
        const auto add = [&](const Plane& plane, std::int64_t head, std::int64_t at, std::int64_t width, T factor, T* to) {
          with_storage<T>(task_.dtype, plane.data,
                          [&](auto* data) { add_non_finite<T>(data + head * plane.head + at * plane.row, plane.column, width, factor, to); });
        };
        if (kind_of(task_, row) != RowKind::uniform) {
          if (!k_finite_ && d_q_ != nullptr) add(task_.k, 0, first + s, task_.qk_width, d_x[s], d_q_ + (block + i) * d_q_stride_);
          if (!q_finite_) add(task_.q, row.head, row.query, task_.qk_width, d_x[s] * scale_.power, d_k_ + s * s_.qk_padded);
        }
        if (!d_out_finite_) add(task_.d_out, row.head, row.query, task_.v_width, p[s], d_v_ + s * s_.v_padded);
      }
    }
  }

  const BackwardTask& task_;
  const ScoreScale<T> scale_;
  BackwardScratch<T> s_;
  T *d_q_total_, *d_q_;  // sums over the task's keys, and over a split of them; the same memory unless task.d_q_split is given
  std::int64_t d_q_stride_;
  T *d_k_ = nullptr, *d_v_ = nullptr;  // sums of the current split of rows for the current block of keys
  const bool in_tiles_ = task_.softcap <= 0 && !task_.dropout;
  bool k_finite_ = true, q_finite_ = true, d_out_finite_ = true;
};

}  // namespace

extern const BackwardKernels backward_kernels;
#ifdef POLYHEAD_BASE_ISA
constinit const BackwardKernels backward_kernels = {
    native_scratch_bytes<BackwardScratch, POLYHEAD_BASE_ISA::backward_kernels, &BackwardKernels::backward_scratch, BackwardTask>,
    run_native_kernel<Backward, POLYHEAD_BASE_ISA::backward_kernels, &BackwardKernels::backward, BackwardTask>};
#else
template <class T>
using PlainBackward = Backward<T>;
constinit const BackwardKernels backward_kernels = {scratch_bytes<BackwardScratch, BackwardTask>, run_kernel<PlainBackward, BackwardTask>};
#endif

}  // namespace polyhead::cpu::POLYHEAD_ISA
