// The kernel of the backward pass of attention. It computes one task (README.md of this folder):
// d_v[s] = sum_t drop(p)[t,s] d_out[t]          d_p[t,s] = m[t,s] <d_out[t], v[s]>               (docs/maths.md, eq. 5, 6)
// d_score = p (d_p - delta),  delta[t] = <d_out[t], out[t]>                                       (eq. 7)
// d_q[t] = scale sum_s d_x[t,s] k[s]           d_k[s] = scale sum_t d_x[t,s] q[t]                (eq. 8, 9)
// m = 1/(1 - dropout probability) for pairs that dropout keeps, 0 for other pairs.
//
// Loops, outermost first (README.md draws them):
//   key block: its k as rows and as panels, v as panels, d_k and d_v stay in the second-level cache
//     query block: p and d_x of the query block and the key block stay in the second-level cache too
//       strip of rows, panel of keys (differentiate_tiles.h): computes q k^T and then d_out v^T, each as one tile of sums in registers; stores p and d_x
//       d_q of the strip += d_x k
//     d_v += p^T d_out, then d_k += d_x^T q: p and d_x are read along their columns, so nothing is transposed
//   d_q, d_k and d_v are summed split by split (gradient_sums.h)
// With AMX the query block is cut into double strips of 32 rows, and d_k and d_v are transposed (backward_amx.h).
#include "cpu/sdpa/apply_score_rule.h"
#include "cpu/sdpa/backward_amx.h"
#include "cpu/sdpa/backward_scratch.h"
#include "cpu/sdpa/base_kernels.h"
#include "cpu/sdpa/bias_rows.h"
#include "cpu/sdpa/differentiate_tiles.h"
#include "cpu/sdpa/dropout.h"
#include "cpu/sdpa/gradient_sums.h"
#include "cpu/sdpa/kernels.h"
#include "cpu/sdpa/one_key.h"
#include "cpu/sdpa/pack.h"
#include "cpu/sdpa/sink.h"
#include "cpu/sdpa/softmax.h"
#include "cpu/sdpa/task_rows.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// With a float32 lse, exp(score - lse) has a relative error of up to |lse| 2^-24. For rows with |lse| above
// this bound the kernel therefore computes the maximum and the sum of the softmax again.
constexpr int kLargestExactLse = 32;

// Operand is the type in which q, k, v and d_out are multiplied: T or bfloat16 pairs.
template <class T, class Operand = T>
class Backward {
 public:
  Backward(const BackwardTask& task, void* memory) : task_(task), scale_(task), sums_(task_, scale_, s_, kBlockRows) {
    BackwardScratch<T>::layout(task, memory, s_);
  }

  void run() {
    load_rows();
    sums_.run(
        [&](std::int64_t first, std::int64_t count) {
          load_keys(first, count);
          load_values(first, count);
        },
        [&](std::int64_t first, std::int64_t count, std::int64_t block, int rows) {
          if constexpr (kAmx) {
            multiply_block_by_tiles(first, count, block, rows);
          } else {
            multiply_block(first, count, block, rows);
          }
        },
        [&](T* sums, std::int64_t padded) {
          if constexpr (kAmx) transpose_sums(sums, s_.keys, padded);
        });
  }

 private:
  static constexpr int kWidth = kLanes<T>, kPanel = kPanelKeys<T>;
  static constexpr bool kNative = std::is_same_v<Operand, Bf16Pair>;
  static constexpr bool kAmx = kUsesAmx<Operand>;
  static constexpr std::int64_t kPerTerm = kNative ? 2 : 1;  // one packed term of a sum over keys (or rows) holds this many keys (or rows)

  static Operand* operand(T* array) { return reinterpret_cast<Operand*>(array); }

  TaskRows<T, Operand> of_rows() const { return {task_, s_.rows, s_.spans, s_.stride, &tiles_}; }

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
      if (lse == -kInfinity<T>) s_.spans[i] = {0, 0};  // the row is empty: it attends to no key
      inexact |= beyond(lse);
      const T *out = of_rows().line_of(task_.out, r, task_.v_width, s_.lines), *d_out = of_rows().line_of(task_.d_out, r, task_.v_width, s_.lines + task_.v_width);
      Vector<T> sums{};
      T sum = 0;
      std::int64_t d = 0;
      for (; d + kWidth <= task_.v_width; d += kWidth) sums = multiply_add<T>(load_vector(out + d), load_vector(d_out + d), sums);
      for (; d < task_.v_width; ++d) sum = multiply_add<T>(out[d], d_out[d], sum);
      s_.delta[i] = sum_of_lanes<T>(sums) + sum;
    }
    if (inexact) find_sums();
    for (std::int64_t i = 0; i < s_.row_count; ++i) s_.lse_reference[i] = lse_reference(s_.lse[i], scale_);
    if (task_.sink.data != nullptr) find_sink_weights();
  }

  // Computes the attention weight of each row's sink and, in only one of the key splits, the gradient of the sink logit.
  void find_sink_weights() {
    for (std::int64_t i = 0; i < s_.row_count; ++i) {
      const Row& row = s_.rows[i];
      const T z = sink_of<T>(task_, row);
      T& p = s_.sink[i];
      p = z == -kInfinity<T> ? T{0} : s_.inverse[i] * exp_of(sink_above(z, s_.shift[i], factor_of_scores<T>(task_, scale_)) - s_.lse[i], scale_);
      if (task_.d_sink.data == nullptr || task_.first_key > 0) continue;
      double* const d_sink = static_cast<double*>(task_.d_sink.data) + row.head * task_.d_sink.head + row.query * task_.d_sink.row;
      *d_sink = only_sink(i, z) ? 0.0 : static_cast<double>(differentiate_sink(p, s_.delta[i]));
    }
  }

  // Returns true for a row without keys (lse = sink, out = 0) whose delta is not finite only because d_out is not finite. Such a row does not use delta.
  bool only_sink(std::int64_t i, T sink) const {
    if (s_.delta[i] * T{0} == 0 || s_.lse[i] != sink) return false;
    const T* const out = of_rows().line_of(task_.out, s_.rows[i], task_.v_width, s_.lines);
    for (std::int64_t d = 0; d < task_.v_width; ++d) {
      if (out[d] != 0) return false;
    }
    return true;
  }

  // Returns whether |lse| is too large for exp(score - lse). A task with only a part of the keys cannot compute the sum again, so it uses lse unchanged.
  bool beyond(T lse) const { return !task_.part_of_keys && (lse > kLargestExactLse || lse < -kLargestExactLse) && lse * T{0} == 0; }

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
        const KeyRange keys = of_rows().keys_of(strip, strip + rows, first, count);
        if (!any || keys.empty()) continue;
        load_queries(strip, rows);
        const StripBlocks blocks = of_rows().blocks_of(strip, rows);
        of_rows().multiply_panels(s_.q, s_.q_stride, s_.k_panels, s_.qk_depth, rows, first, keys, blocks, s_.p);
        if (task_.rule != nullptr) apply_score_rule<T>(task_, scale_.of_products, s_.rows + strip, rows, first, keys, blocks, s_.stride, s_.p, nullptr);
        for (int i = 0; i < rows; ++i) {
          const KeyRange own = of_rows().part(strip + i, first, count);
          if (beyond(s_.lse[strip + i]) && !own.empty()) extend_sum(strip + i, first, own, s_.p + i * s_.stride);
        }
      }
    }
    for (std::int64_t i = 0; i < s_.row_count; ++i) {
      if (!beyond(s_.lse[i])) continue;
      if (s_.inverse[i] == 0 && task_.sink.data != nullptr) {  // no key has a score above -infinity, so lse equals the sink logit
        s_.shift[i] = 0, s_.inverse[i] = 1;
        continue;
      }
      const SumWithSink<T> total(s_.inverse[i], s_.shift[i], factor_of_scores<T>(task_, scale_), sink_of<T>(task_, s_.rows[i]), scale_);
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
    sum = multiply_add<T>(sum, exp_of_negative<T>(broadcast(old - reference), score_exp)[0], exponentiate(x, begin, end, reference, score_exp));
  }

  void load_keys(std::int64_t first, std::int64_t count) {
    if constexpr (kNative) {
      const bf16* const k = static_cast<const bf16*>(task_.k.data) + first * task_.k.row;
      pack_bf16_transposed(k, task_.k.row, task_.k.column, count, task_.qk_width, kPanel, operand(s_.k_panels));
      k_finite_ = pack_bf16_rows(k, task_.k.row, task_.k.column, count, task_.qk_width, s_.qk_padded, operand(s_.k));
    } else {
      of_rows().pack_keys(task_.k, first, count, task_.qk_width, s_.lines, s_.k_panels);
      k_finite_ = of_rows().copy_keys(task_.k, first, count, task_.qk_width, s_.qk_padded, s_.k);
    }
  }

  void load_values(std::int64_t first, std::int64_t count) {
    if constexpr (kNative) {
      pack_bf16_transposed(static_cast<const bf16*>(task_.v.data) + first * task_.v.row, task_.v.row, task_.v.column, count, task_.v_width, kPanel,
                             operand(s_.v_panels));
    } else {
      of_rows().pack_keys(task_.v, first, count, task_.v_width, s_.lines, s_.v_panels);
    }
  }

  // Copies rows of q, multiplied by the scale's power of two, and rows of d_out. If a row contains a NaN or an infinity, also makes a copy of the row with 0 in
  // its place, for the sums over rows.
  void load_queries(std::int64_t block, int rows) {
    if constexpr (kNative) {
      q_finite_ = load_pairs(task_.q, block, rows, task_.qk_width, s_.qk_padded, scale_.power, operand(s_.q), s_.qk_depth, operand(s_.q_columns));
      d_out_finite_ = load_pairs(task_.d_out, block, rows, task_.v_width, s_.v_padded, T{1}, operand(s_.d_out), s_.v_depth, operand(s_.d_out_columns));
    } else {
      q_finite_ = of_rows().load(task_.q, block, rows, task_.qk_width, s_.qk_padded, scale_.power, s_.q);
      d_out_finite_ = of_rows().load(task_.d_out, block, rows, task_.v_width, s_.v_padded, T{1}, s_.d_out);
      if (!q_finite_) zero_non_finite(s_.q, rows * s_.qk_padded, s_.q_finite);
      if (!d_out_finite_) zero_non_finite(s_.d_out, rows * s_.v_padded, s_.d_out_finite);
    }
  }

  // Loads rows in two forms: to `to` as words of two neighbouring columns, and to `columns` as words of two neighbouring rows. In the second form NaN and
  // infinities become 0. Returns whether all elements are finite.
  bool load_pairs(const HeadView& view, std::int64_t block, int rows, std::int64_t width, std::int64_t padded, T factor, Operand* to, std::int64_t depth,
                  Operand* columns) const {
    for (int i = 0; i < rows; ++i)
      pack_bf16_neighbours(row_of(view, static_cast<const bf16*>(view.data), s_.rows[block + i]), view.column, width, factor, to + i * depth);
    if constexpr (kAmx) {
      if (rows % 32 == 0 && width == padded && width % 32 == 0 && pack_finite_columns(to, width, rows, columns)) return true;
    }
    const bool finite = pack_bf16_rows(reinterpret_cast<const bf16*>(to), 2 * depth, 1, rows, width, padded, columns);
    if constexpr (kAmx) transpose_blocks(columns, bf16_pairs_of(rows), padded);
    return finite;
  }

  // Writes d_bias = 0 for rows that attend to no key of the key block.
  void clear_bias(std::int64_t first, std::int64_t count, std::int64_t block, int rows) const {
    if (task_.write_d_bias) clear_bias_rows(task_, s_.rows + block, rows, first, count, s_.d_x);
  }

  void multiply_block(std::int64_t first, std::int64_t count, std::int64_t block, int rows) {
    const KeyRange block_keys = of_rows().keys_of(block, block + rows, first, count);
    if (block_keys.empty()) return clear_bias(first, count, block, rows);
    load_queries(block, rows);
    KeyRange strips[kBlockRows / kStripRows];
    for (int strip = 0; strip < rows; strip += kStripRows) {
      const int height = static_cast<int>(smaller(kStripRows, rows - strip));
      const KeyRange keys = strips[strip / kStripRows] = of_rows().keys_of(block + strip, block + strip + height, first, count);
      differentiate_strip(block, strip, height, keys, first, count, block_keys);
      if (keys.empty() || sums_.d_q(0) == nullptr) continue;
      const std::int64_t first_term = keys.first / kPerTerm, stride = s_.stride / kPerTerm;  // a term may begin before `keys`, where d_x is 0
      of_rows().multiply_rows({.depth = round_up(keys.last, kPerTerm) / kPerTerm - first_term,
                               .a = operand(kNative ? s_.d_x_pairs : s_.d_x) + strip * stride + first_term,
                               .a_stride = stride,
                               .b = operand(s_.k) + first_term * s_.qk_padded,
                               .b_stride = s_.qk_padded,
                               .c = sums_.d_q(block + strip),
                               .c_stride = sums_.d_q_stride(),
                               .add = true,
                               .first_run = kNative ? 0 : first_run_from(first_term)},
                              height, static_cast<int>(s_.qk_padded / kWidth));
    }
    const T* const d_out = kNative ? s_.d_out_columns : d_out_finite_ ? s_.d_out : s_.d_out_finite;
    const T* const q = kNative ? s_.q_columns : q_finite_ ? s_.q : s_.q_finite;
    // Compute all of d_v before d_k, because the rows of d_out and the rows of q do not fit in the first-level cache at the same time.
    if (task_.d_v.data != nullptr)
      of_rows().multiply_columns(kNative ? s_.p_columns : s_.p, rows, strips, block_keys, d_out, s_.v_padded, sums_.d_v());
    if (task_.d_k.data != nullptr) of_rows().multiply_columns(kNative ? s_.d_x_columns : s_.d_x, rows, strips, block_keys, q, s_.qk_padded, sums_.d_k());
    if (!k_finite_ || !q_finite_ || !d_out_finite_) add_non_finite_values(first, count, block, rows);
  }

  // Returns whether the key block contains all keys that the row attends to.
  bool has_all_keys(std::int64_t index, std::int64_t first) const { return !task_.part_of_keys && of_rows().in_one_block(index, first, s_.keys); }

  RowPath path_of(std::int64_t index, std::int64_t first) const {
    const bool exact = s_.lse[index] * T{0} == 0 && s_.shift[index] == 0 && s_.inverse[index] == 1;
    if (!in_tiles_ || !exact || kind_of(task_, s_.rows[index]) != RowKind::masked) return RowPath::memory;
    return has_all_keys(index, first) ? RowPath::tiles_of_whole_row : RowPath::tiles;
  }

  // Computes p and d_x of a strip of the query block. `keys` is the range that the strip's rows attend to. At the other keys in `block_keys`, p and d_x are 0.
  // Also stores d_score in d_bias.
  void differentiate_strip(std::int64_t block, int begin, int rows, KeyRange keys, std::int64_t first, std::int64_t count,
                           KeyRange block_keys) {
    bool tiles = false, passes = false;
    TileStrip<T, Operand> strip(task_, scale_, s_, block, begin, rows, first);
    KeyRange own_keys[kStripRows];
    for (int i = 0; i < rows; ++i) own_keys[i] = of_rows().part(block + begin + i, first, count);
    load_strip(strip, own_keys);
    const RowPath* const paths = strip.paths;
    for (int i = 0; i < rows; ++i) (paths[i] == RowPath::memory ? passes : tiles) = true;
    T *p = s_.p + begin * s_.stride, *d_x = s_.d_x + begin * s_.stride;
    const bool ruled = task_.rule != nullptr && !keys.empty();
    if (ruled) {
      of_rows().multiply_panels(s_.q + begin * s_.q_stride, s_.q_stride, s_.k_panels, s_.qk_depth, rows, first, keys, strip.blocks, p);
      apply_score_rule<T>(task_, scale_.of_products, s_.rows + block + begin, rows, first, keys, strip.blocks, s_.stride, p, task_.rule->reads_before ? s_.before_rule : nullptr);
    }
    // Tiles always contain all rows of the strip, so the bits of a row do not depend on the RowPath of the other rows.
    if (tiles && !keys.empty()) differentiate_tiles(strip, keys);
    for (int i = 0, end = 0; i < rows && passes && !keys.empty(); i = end) {
      for (end = i + 1; end < rows && paths[end] == paths[i];) ++end;
      if (paths[i] != RowPath::memory) continue;
      const int row = begin + i;
      if (!ruled)
        of_rows().multiply_panels(s_.q + row * s_.q_stride, s_.q_stride, s_.k_panels, s_.qk_depth, end - i, first, keys, strip.blocks, p + i * s_.stride);
      of_rows().multiply_panels(s_.d_out + row * s_.d_out_stride, s_.d_out_stride, s_.v_panels, s_.v_depth, end - i, first, keys, strip.blocks, d_x + i * s_.stride);
    }
    KeyRange written = task_.write_d_bias ? KeyRange{0, count} : block_keys;
    written = {written.first / kPerTerm * kPerTerm, round_up(written.last, kPerTerm)};
    for (int i = 0; i < rows; ++i, p += s_.stride, d_x += s_.stride) {
      const std::int64_t index = block + begin + i;
      KeyRange own = strip.own[i];
      if (own.empty()) own = {written.last, written.last};
      if (paths[i] == RowPath::memory && own.first < own.last) differentiate_keys(index, first, own, p, d_x);
      clear(p, block_keys.first, own.first), clear(p, own.last, block_keys.last);
      clear(d_x, written.first, own.first), clear(d_x, own.last, written.last);
      finish_row(index, first, count, own, d_x);
    }
    if (ruled)
      differentiate_score_rule<T>(task_, task_.rule_sums, s_.rows + block + begin, rows, first, keys, strip.blocks, s_.stride, s_.d_x + begin * s_.stride, s_.before_rule, s_.rule_copy);
    if constexpr (kNative) pair_strip(begin, rows, block_keys);
  }

  // Sets the key range and the RowPath of each row of a strip.
  void load_strip(TileStrip<T, Operand>& strip, const KeyRange* own) const {
    for (int i = 0; i < strip.rows; ++i) {
      const std::int64_t index = strip.first + i;
      strip.paths[i] = path_of(index, strip.first_key);
      strip.own[i] = own[i];
      if (task_.d_bias.data != nullptr && !task_.write_d_bias) fetch_bias_row<T>(task_, s_.rows[index], strip.first_key, strip.own[i]);
    }
    if (strip.rows > 0) strip.blocks = of_rows().blocks_of(strip.first, strip.rows);
  }

  // Writes a row's d_score to d_bias or adds it there, and then multiplies d_score by the derivative of the softcap.
  void finish_row(std::int64_t index, std::int64_t first, std::int64_t count, KeyRange own, T* d_x) const {
    const Row& row = s_.rows[index];
    if (task_.write_d_bias) {
      write_bias_row(task_, row, first, count, d_x);
    } else if (task_.d_bias.data != nullptr && kind_of(task_, row) != RowKind::uniform) {
      add_bias_row(task_, row, first, own, d_x);
    }
    for (std::int64_t s = own.first; s < own.last && task_.softcap > 0; ++s) d_x[s] = d_x[s] == T{0} ? T{0} : d_x[s] * s_.softcap_derivative[s];
  }

  RoundedTiles rounded_tiles() const { return {operand(s_.d_x_pairs), operand(s_.p_columns), operand(s_.d_x_columns), s_.keys / 32}; }

  // Does the work of multiply_block() with AMX tiles, in double strips of 32 rows.
  void multiply_block_by_tiles(std::int64_t first, std::int64_t count, std::int64_t block, int rows) {
    KeyRange own[kBlockRows], all{count, 0};
    for (int i = 0; i < rows; ++i) {
      own[i] = of_rows().part(block + i, first, count);
      if (!own[i].empty()) all = {smaller(all.first, own[i].first), larger(all.last, own[i].last)};
    }
    if (all.empty()) return clear_bias(first, count, block, rows);
    load_queries(block, rows);
    const RoundedTiles rounded = rounded_tiles();
    std::uint32_t chunks[kBlockRows / kDoubleStripRows];
    int double_strips = 0;
    for (int begin = 0; begin < rows; begin += kDoubleStripRows, ++double_strips) {
      const int height = static_cast<int>(smaller(kDoubleStripRows, rows - begin));
      chunks[double_strips] = differentiate_rows_of_double_strip(block, begin, height, first, count, own + begin, rounded);
      if (chunks[double_strips] != 0 && sums_.d_q(0) != nullptr)
        add_to_d_q(tiles_, rounded, begin, height, chunks[double_strips], operand(s_.k), s_.qk_padded, sums_.d_q(block + begin), sums_.d_q_stride());
    }
    if (task_.d_v.data != nullptr) add_to_columns(tiles_, operand(s_.d_out_columns), rounded.p_of_rows, rounded, chunks, double_strips, s_.v_padded, sums_.d_v());
    if (task_.d_k.data != nullptr) add_to_columns(tiles_, operand(s_.q_columns), rounded.d_x_of_rows, rounded, chunks, double_strips, s_.qk_padded, sums_.d_k());
    if (!k_finite_ || !q_finite_ || !d_out_finite_) add_non_finite_values(first, count, block, rows);
  }

  // Computes p, d_x and d_bias of up to 32 rows, and stores p and d_x, rounded, in `rounded`. Returns one bit for each chunk of 32 keys: 1 if the chunk was
  // stored.
  std::uint32_t differentiate_rows_of_double_strip(std::int64_t block, int begin, int rows, std::int64_t first, std::int64_t count, const KeyRange* own_keys, const RoundedTiles& rounded) {
    for (int i = 0; i < rows && sums_.d_q(0) != nullptr; ++i) {
      for (std::int64_t d = 0; d < s_.qk_padded; d += 16) __builtin_prefetch(sums_.d_q(block + begin + i) + d, 1, 2);
    }
    const int upper = static_cast<int>(smaller(kStripRows, rows));
    TileStrip<T, Operand> strips[] = {{task_, scale_, s_, block, begin, upper, first}, {task_, scale_, s_, block, begin + upper, rows - upper, first}};
    bool direct = task_.d_bias.data == nullptr;
    KeyRange keys{count, 0};
    for (int s = 0; s < 2; ++s) {
      load_strip(strips[s], own_keys + s * kStripRows);
      for (int i = 0; i < strips[s].rows; ++i) {
        const KeyRange& own = strips[s].own[i];
        direct = direct && strips[s].paths[i] == RowPath::tiles;
        if (!own.empty()) keys = {smaller(keys.first, own.first), larger(keys.last, own.last)};
      }
    }
    if (direct) return keys.empty() ? 0 : differentiate_double_strip<true>(strips, keys, tiles_, rounded);
    const std::uint32_t chunks = keys.empty() ? 0 : differentiate_double_strip<false>(strips, keys, tiles_, rounded);
    for (int i = 0; i < rows; ++i) {
      const TileStrip<T, Operand>& strip = strips[i / kStripRows];
      T* const d_x = s_.d_x + i * s_.stride;
      KeyRange own = strip.own[i % kStripRows];
      if (own.empty()) own = {count, count};
      if (strip.paths[i % kStripRows] == RowPath::memory && !own.empty()) {
        T* const p = s_.p + i * s_.stride;
        differentiate_keys(block + begin + i, first, own, p, d_x);
        for (T* const line : {p, d_x}) clear(line, own.first / kWidth * kWidth, own.first), clear(line, own.last, round_up(own.last, kWidth));  // if lse is NaN, masked keys in the first and last vector are NaN too
      }
      if (task_.write_d_bias) clear(d_x, 0, own.first), clear(d_x, own.last, count);
      finish_row(block + begin + i, first, count, own, d_x);
    }
    round_double_strip(strips, chunks, rounded);
    return chunks;
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

  // For the keys `own` that the row attends to, replaces the products <q, k> in x by drop(p), and the products <d_out, v> in y by d_score.
  void differentiate_keys(std::int64_t index, std::int64_t first, KeyRange own, T* x, T* y) {
    const Row& row = s_.rows[index];
    const T pending_scale = finish_scores<T>(task_, row, scale_.factor, first, own.first, own.last, x, s_.softcap_derivative, s_.bytes);
    const T shift = s_.shift[index], lse = s_.lse[index], inverse = s_.inverse[index], delta = s_.delta[index];
    const bool finite = lse * T{0} == 0;
    const std::int64_t begin = own.first / kWidth * kWidth, end = round_up(own.last, kWidth);
    const std::uint8_t* keep = task_.dropout ? keep_bytes(task_, row, first, own.first, own.last, s_.bytes) : nullptr;
    if (keep != nullptr) drop_keys(task_, keep, own, y);
    RowSums<T> sums = first_sums(task_, s_, index);
    for_each_group<T>(begin, end, [&]<int kCount>(std::int64_t i) {
      Vector<T> p[kCount], d_score[kCount];
#pragma GCC unroll 4
      for (int j = 0; j < kCount; ++j) p[j] = multiply_add<T>(load_vector(x + i + j * kWidth) - shift, broadcast(pending_scale), broadcast(T{0} - lse));
      exp_of_difference<kCount>(p, T{0}, scale_.natural);
#pragma GCC unroll 4
      for (int j = 0; j < kCount; ++j) {
        p[j] *= inverse;
        d_score[j] = differentiate_score<T>(p[j], load_vector(y + i + j * kWidth), delta);
        store_vector<T>(p[j], x + i + j * kWidth), store_vector<T>(d_score[j], y + i + j * kWidth);
      }
      sums.add(p, d_score);
    });
    if (finite && has_all_keys(index, first)) normalise_row(begin, end, RowFactors<T>(sums), x, y);
    for (std::int64_t i = own.first; i < own.last && !finite; ++i) {  // if lse is not finite, only the keys that the row attends to may become NaN
      if (!attends_to(task_, row, first + i)) x[i] = y[i] = 0;
    }
    if (keep != nullptr) drop_keys(task_, keep, own, x);
    if (kind_of(task_, row) == RowKind::uniform) clear(y, own.first, own.last);
  }

  // Adds NaN and infinities of k, q and d_out to the gradients of pairs (query, key) in which the query attends to the key, and to no other gradients. The
  // products used copies in which they are 0.
  void add_non_finite_values(std::int64_t first, std::int64_t count, std::int64_t block, int rows) {
    for (int i = 0; i < rows; ++i) {
      const Row& row = s_.rows[block + i];
      const KeyRange own = of_rows().part(block + i, first, count);
      for (std::int64_t s = own.first; s < own.last; ++s) {
        if (!attends_to(task_, row, first + s)) continue;
        const auto [p, d_x] = weights_at(i, s);
        const auto add = [&](const HeadView& view, std::int64_t head, std::int64_t at, std::int64_t width, T factor, T* to) {
          with_storage<T>(task_.dtype, view.data,
                          [&](auto* data) { add_non_finite<T>(data + head * view.head + at * view.row, view.column, width, factor, to); });
        };
        const auto add_to_key = [&](const HeadView& view, std::int64_t width, T factor, T* sums, std::int64_t padded) {
          if constexpr (kAmx) {
            clear(s_.lines, 0, width);
            add(view, row.head, row.query, width, factor, s_.lines);
            for (std::int64_t d = 0; d < width; ++d) sum_at(sums, padded, s, d) += s_.lines[d];
          } else {
            add(view, row.head, row.query, width, factor, sums + s * padded);
          }
        };
        if (kind_of(task_, row) != RowKind::uniform) {
          if (!k_finite_ && sums_.d_q(0) != nullptr) add(task_.k, 0, first + s, task_.qk_width, d_x, sums_.d_q(block + i));
          if (!q_finite_) add_to_key(task_.q, task_.qk_width, d_x * scale_.power, sums_.d_k(), s_.qk_padded);
        }
        if (!d_out_finite_) add_to_key(task_.d_out, task_.v_width, p, sums_.d_v(), s_.v_padded);
      }
    }
  }

  // p and d_x of one pair: a row of the query block and a key of the key block.
  struct PairWeights {
    T p, d_x;
  };
  PairWeights weights_at(int row, std::int64_t key) const {
    if constexpr (kAmx) {
      return {rounded_tiles().p_at(row, key), rounded_tiles().d_x_at(row, key)};
    } else {
      return {s_.p[row * s_.stride + key], s_.d_x[row * s_.stride + key]};
    }
  }

  const BackwardTask& task_;
  const ScoreScale<T> scale_;
  BackwardScratch<T> s_;
  GradientSums<T> sums_;
  const bool in_tiles_ = task_.softcap <= 0 && !task_.dropout && task_.rule == nullptr;
  bool k_finite_ = true, q_finite_ = true, d_out_finite_ = true;
  mutable Tiles<Operand> tiles_;  // tile registers, whose contents do not matter between products
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
constinit const BackwardKernels backward_kernels = {scratch_bytes<BackwardScratch, BackwardTask>, run_kernel_or_one_key<PlainBackward, BackwardTask>};
#endif

}  // namespace polyhead::cpu::POLYHEAD_ISA
