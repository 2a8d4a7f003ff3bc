// The kernel of the forward pass of attention. It computes one task (README.md of this folder):
// out[t] = sum_s drop(p)[t,s] v[s],  p = exp(score - lse)                                (docs/maths.md, eq. 1-4)
//
// Loops, outermost first (README.md draws them):
//   pass: all rows of the task or, if attention weights are computed, as many rows as fit in a cache; one loop over the keys for each pass
//     key block: its keys, transposed into panels, and its values stay in the second-level cache; tasks of few rows read k and v from the caller's tensors
//       strip of rows: the scores of the strip with the key block stay in the first-level cache
//         panel of keys: q k^T as one tile of sums in registers; bias, masks and exp are applied there (online_softmax.h), then p is stored
//         with AMX, instead: all scores of the strip are stored in the second-level cache first, then exp is computed (forward_amx_scores.h)
//       p v is summed in registers and joined with o of earlier key blocks (join_blocks.h); after the last key block o / l is stored in `out`
// A row's result depends only on the row's keys and their positions: key blocks begin at multiples of forward_key_block(), a row's sums begin at 0 in each key
// block, and the blocks are joined in their order, here or in merge_kernel.cc.
#include "cpu/sdpa/apply_score_rule.h"
#include "cpu/sdpa/attention_weight_rows.h"
#include "cpu/sdpa/base_kernels.h"
#include "cpu/sdpa/forward_amx_scores.h"
#include "cpu/sdpa/forward_operands.h"
#include "cpu/sdpa/kernels.h"
#include "cpu/sdpa/one_key.h"
#include "cpu/sdpa/online_softmax.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// Operand is the type in which q, k and v are multiplied: T or bfloat16 pairs.
template <class T, class Operand = T>
class Forward {
 public:
  Forward(const ForwardTask& task, void* memory)
      : task_(task),
        scale_(task),
        softmax_(score_exp_of(task, scale_), s_),
        in_place_(task.partial == nullptr && task.sink.data == nullptr && stores_in_place<T>(task)),
        strip_rows_(strip_rows<T>(task)) {
    Scratch<T>::layout(task, memory, s_);
    sums_stride_ = task.partial == nullptr ? s_.v_padded : partial_stride(task.v_width);
  }

  void run() {
    load_rows();
    if (task_.partial != nullptr) clear_partial_sums();
    for (std::int64_t row = 0; row < task_.rows; row += s_.pass_rows) run_pass(row, smaller(row + s_.pass_rows, task_.rows));
    if (task_.partial == nullptr) store_lse<T>(task_, score_exp_of(task_, scale_), s_.rows, task_.rows, s_.m, s_.l, s_.share);
  }

 private:
  static constexpr int kWidth = kLanes<T>, kPanel = kPanelKeys<T>;
  static constexpr bool kNative = std::is_same_v<Operand, Bf16Pair>;
  static_assert(kNative || !kHasAmx);  // with AMX, kTermBlock counts pairs in a tile, so operands must be pairs
  static constexpr std::int64_t kKeysPerTerm = kNative ? 2 : 1;  // number of keys in one packed term of the product with v
  using Operands = std::conditional_t<kUsesAmx<Operand>, AmxOperands, std::conditional_t<kNative, Bf16Operands, ForwardOperands<T>>>;

  // Computes the rows [first_row, end) in one loop over all key blocks.
  void run_pass(std::int64_t first_row, std::int64_t end) {
    const bool loaded = first_row > 0;
    for (std::int64_t key = task_keys_.first / s_.keys * s_.keys; key < task_keys_.last; key += s_.keys) {
      strip_.begin_block(key, {larger(task_keys_.first - key, 0), smaller(task_keys_.last - key, s_.keys)});
      const bool last = key + s_.keys >= task_keys_.last;
      const std::uint64_t wanted = wanted_columns(first_row, end);
      if (wanted == 0 && !last && !attention_weights_.wanted()) continue;
      if (wanted != 0) {
        operands_.load_keys(key, without_unwanted_ends(wanted, strip_.block), wanted, loaded);
        non_finite_ |= !operands_.finite();
      }
      for (strip_.first_row = first_row; strip_.first_row < end; strip_.first_row += strip_rows_) {
        const int rows = strip_.rows = static_cast<int>(smaller(strip_rows_, end - strip_.first_row));
        // Store the rows now, while o is still in the first-level cache.
        if (!multiply_strip(rows, last) && last && task_.partial == nullptr) store_strip(rows);
        if (last) store_attention_weights(rows);
      }
    }
    if (!task_keys_.empty() || task_.partial != nullptr) return;
    for (strip_.first_row = first_row; strip_.first_row < end; strip_.first_row += strip_rows_) {
      const int rows = static_cast<int>(smaller(strip_rows_, end - strip_.first_row));
      store_strip(rows);
      store_attention_weights(rows);
    }
  }

  // Returns a bit for each kMaskBlockKeys keys of the key block, which is 0 if some boolean mask forbids these keys to all rows of the pass. Such keys are not
  // packed. Masks are examined one by one, so some packed keys may be masked for every row.
  std::uint64_t wanted_columns(std::int64_t first_row, std::int64_t end) const {
    bool known = task_.mask_count > 0 && task_.row_kinds == nullptr && !s_.keeps_keys;
    for (int i = 0; i < task_.mask_count; ++i) known = known && task_.masks[i].blocks != nullptr;
    if (!known) return kAllColumns;
    const std::int64_t columns = (smaller(s_.keys, task_.keys - strip_.first_key) + kMaskBlockKeys - 1) / kMaskBlockKeys;
    std::uint64_t of_mask[KeySet::kMostMasks] = {};
    for (std::int64_t i = first_row; i < end;) {
      const Row& row = s_.rows[i];
      std::int64_t same = task_.queries - row.query;  // number of rows, from this row on, that have the same block kinds in all masks
      for (int m = 0; m < task_.mask_count; ++m) {
        const BooleanMask& mask = task_.masks[m];
        const BlockKind* const kinds = blocks_of_query(mask, row.head, row.query) + strip_.first_key / kMaskBlockKeys;
        for (std::int64_t c = 0; c < columns; ++c) of_mask[m] |= std::uint64_t{kinds[c] != BlockKind::skip} << c;
        same = smaller(same, mask.listed() ? (mask.row_of_query(row.query) + 1) * mask.listed_queries - mask.query_position - row.query
                                           : kMaskBlockQueries - row.query % kMaskBlockQueries);
      }
      i += same;
    }
    std::uint64_t wanted = kAllColumns;
    for (int m = 0; m < task_.mask_count; ++m) wanted &= of_mask[m];
    return columns < 64 ? wanted & ((std::uint64_t{1} << columns) - 1) : wanted;
  }

  void load_rows() {
    task_keys_ = strip_.ranged ? KeyRange{task_.keys, 0} : KeyRange{task_.first_key, smaller(task_.keys, task_.last_key)};
    Row next{task_.first_row, task_.first_row / task_.queries, task_.first_row % task_.queries};
    for (std::int64_t i = 0; i < task_.rows; ++i) {
      const Row r = s_.rows[i] = next;
      next = next_row(r, task_.queries);
      if (!strip_.ranged) continue;
      const KeyRange all = narrow_range_of(task_, r),
                     span = s_.spans[i] = {larger(all.first, task_.first_key), smaller(all.last, task_.last_key)};
      if (!span.empty()) task_keys_ = {smaller(task_keys_.first, span.first), larger(task_keys_.last, span.last)};
    }
    for (std::int64_t i = 0; i * strip_rows_ < task_.rows; ++i) s_.started[i] = 0;
    operands_.load_queries();
  }

  // Computes the results of the strip for the current key block. Returns whether the rows were also stored in `out`.
  bool multiply_strip(int rows, bool last) {
    const KeyRange keys = strip_.ranged || strip_.scores != Scores::plain ? strip_.load() : strip_.block;
    if (keys.empty()) {
      if (attention_weights_.wanted()) store_exponentials(rows, nullptr);
      return false;
    }
    // Number of keys in a block of terms. If such a block is only partly filled, its exponentials are padded with 0.
    constexpr std::int64_t kKeys = kKeysPerTerm * kTermBlock;
    strip_.begin = keys.first / larger(kWidth, kKeys) * larger(kWidth, kKeys);
    if (task_.rule != nullptr) apply_rule(rows, keys);
    T l[kMostStripRows + kWidth], earlier[kMostStripRows + kWidth], own[kMostStripRows + kWidth], correction[kNative ? kMostStripRows : 1];
    if constexpr (kUsesAmx<Operand>) {
      AmxScores scores(strip_, s_, operands_);
      scores.find(keys);
      // true: the exponentials are also stored in float32
      const bool kept = attention_weights_.wanted() || task_.dropout || !operands_.finite() || reads_stored_values<T>(task_);
      scores.exponentiate(keys, kept, softmax_, score_exp_of(task_, scale_).high, l, correction);
    } else {
      exponentiate_strip(rows, keys);
      softmax_.add_up(strip_.first_row, rows, l);
    }
    if (attention_weights_.wanted()) store_exponentials(rows, l);
    const bool joined = join_sums(rows, l, earlier, own);
    if constexpr (kUsesAmx<Operand>) {
      for (int i = 0; i < rows && task_.dropout; ++i) {
        drop(i);
        round_to_bf16(s_.scores + i * s_.stride, strip_.begin, round_up(keys.last, kKeys), T{1}, weights_of_values() + i * s_.stride / 2);
      }
    } else if constexpr (kNative) {
      round_strip(rows, keys, l, correction);
    } else {
      for (int i = 0; i < rows && task_.dropout; ++i) drop(i);
    }
    operands_.fetch_queries(strip_.first_row + strip_rows_, strip_rows_);
    // The product with v is summed from zero for each key block and then added to o. So the rounding error grows with the number of runs and key blocks, not
    // with the number of keys.
    T divisor[kMostStripRows + kWidth], reciprocal[kMostStripRows + kWidth];
    bool finish = last && !non_finite_ && in_place_ && s_.rows[strip_.first_row + rows - 1].head == s_.rows[strip_.first_row].head;
    if (finish) find_divisors<T>(task_, rows, s_.l + strip_.first_row, divisor, reciprocal);  // start the divisions early: they run in parallel with the product
    const std::int64_t first_term = keys.first / kKeys * kTermBlock;
    Product<T, Operand> values{.depth = round_up(keys.last, kKeys) / kKeysPerTerm - first_term,
                               .a = weights_of_values() + first_term,
                               .a_stride = s_.stride / kKeysPerTerm,
                               .b = operands_.v() + first_term * s_.v_padded,
                               .b_stride = s_.v_padded,
                               .c = sums_of(strip_.first_row),
                               .c_stride = sums_stride_,
                               .earlier = joined ? earlier : nullptr,
                               .own = own,
                               .correction = kNative ? correction : nullptr,
                               .first_run = kNative ? 0 : first_run_from(first_term)};
    if (finish) {
      const Row& row = s_.rows[strip_.first_row];
      values.quotient = static_cast<T*>(task_.out.data) + row.head * task_.out.head + row.query * task_.out.row;
      values.quotient_stride = task_.out.row, values.divisor = divisor, values.reciprocal = reciprocal;
    }
    if (reads_stored_values<T>(task_)) {
      finish = operands_.multiply_stored_values(values, keys, rows);
      non_finite_ |= !operands_.finite();
    } else if constexpr (kUsesAmx<Operand>) {
      operands_.multiply_values(values, rows);
    } else {
      multiply<false, From::second_cache>(values, rows, static_cast<int>(s_.v_padded / kWidth));
    }
    if (!operands_.finite()) add_non_finite_values(rows, joined ? own : nullptr);
    return finish;
  }

  // Divides each row's exponentials by the row's largest exponential and rounds them to bfloat16 pairs. The largest becomes 1, which needs no rounding. l holds
  // the sums before rounding. The product with v is multiplied by `correction` = l / (sum of the rounded exponentials), which cancels rounding errors that all
  // exponentials of a row share.
  void round_strip(int rows, KeyRange keys, const T* l, T* correction) {
    for (int i = 0; i < rows; ++i) {
      const std::int64_t end = round_up(keys.last, kWidth);
      T* const p = s_.scores + i * s_.stride;
      const T largest = largest_of(p, strip_.begin, end), factor = largest > 0 && largest * T{0} == 0 ? 1 / largest : T{1};
      const T ratio = l[i] / round_to_bf16(p, strip_.begin, end, factor, weights_of_values() + i * s_.stride / 2);
      correction[i] = ratio * T{0} == 0 ? ratio : T{1};
      if (!task_.dropout) continue;
      drop(i);
      round_to_bf16(p, strip_.begin, end, factor, weights_of_values() + i * s_.stride / 2);
    }
  }

  // Returns the strip's exponentials in the type in which they are multiplied by v.
  Operand* weights_of_values() const { return reinterpret_cast<Operand*>(kNative ? s_.bf16_pairs : s_.scores); }

  // Joins m and l of the strip's rows in this key block with m and l of the earlier key blocks. Returns whether there are earlier key blocks. If so, the old o
  // must be multiplied by `earlier`, and o of this block by `own`. A task of a key split joins nothing: it stores m and l of each key block.
  bool join_sums(int rows, const T* l, T* earlier, T* own) {
    const T* const m = s_.reference + strip_.first_row;
    if (task_.partial != nullptr) {
      const std::int64_t size = sums_stride_;
      T* to = sums_of(strip_.first_row) + size - 2;
      for (int i = 0; i < rows; ++i, to += size) to[0] = m[i], to[1] = l[i];
      return false;
    }
    std::uint8_t& started = s_.started[strip_.first_row / strip_rows_];
    const bool joined = started != 0;
    joined ? softmax_.join_rows(strip_.first_row, rows, l, earlier, own) : softmax_.set_rows(strip_.first_row, rows, m, l);
    started = 1;
    return joined;
  }

  // Returns the memory of the sums o of a row. In a task of a key split, m and l follow o in memory.
  T* sums_of(std::int64_t row) const {
    if (task_.partial == nullptr) return s_.o + row * s_.v_padded;
    return static_cast<T*>(task_.partial) + ((strip_.first_key - task_.first_key) / s_.keys * task_.rows + row) * sums_stride_;
  }

  // Sets the sums of the key split to 0. A strip that attends to no key of a key block does not write its sums for the block, which must be 0.
  void clear_partial_sums() const {
    const std::int64_t blocks = (smaller(task_.last_key, task_.keys) - task_.first_key + s_.keys - 1) / s_.keys;
    clear(static_cast<T*>(task_.partial), 0, blocks * task_.rows * sums_stride_);
  }

  // Computes the strip's scores with the key block, lets the score rule change them and stores them. Tiles then read these scores instead of multiplying q and k.
  __attribute__((noinline)) void apply_rule(int rows, KeyRange keys) {
    if constexpr (!kNative) {  // a task with a rule is not native
      for_each_panel<T>(keys.first, keys.last, [&](std::int64_t panel, std::int64_t begin, int vectors) {
        if (strip_.blocks.at(strip_.first_key + panel) == BlockKind::skip) return;
        T* const to = s_.scores + begin;
        if (vectors == kTileVectors && operands_.multiply_stored_keys(operands_.q(strip_.first_row), rows, panel, to, s_.stride)) return;
        multiply<false, From::second_cache>(Product<T>{.depth = s_.depth,
                                                       .a = operands_.q(strip_.first_row),
                                                       .a_stride = operands_.q_stride(),
                                                       .b = operands_.k_panel(panel) + (begin - panel),
                                                       .b_stride = kPanel,
                                                       .c = to,
                                                       .c_stride = s_.stride},
                                            rows, vectors);
      });
      apply_score_rule<T>(task_, scale_.of_products, s_.rows + strip_.first_row, rows, strip_.first_key, keys, strip_.blocks, s_.stride, s_.scores, nullptr);
    }
  }

  void exponentiate_strip(int rows, KeyRange keys) {
    if (strip_.scores == Scores::plain) exponentiate_rows<Scores::plain>(rows, keys);
    if (strip_.scores == Scores::masked) exponentiate_rows<Scores::masked>(rows, keys);
    if (strip_.scores == Scores::biased) exponentiate_rows<Scores::biased>(rows, keys);
    if (strip_.scores == Scores::general) exponentiate_rows<Scores::general>(rows, keys);
  }

  template <Scores kScores>
  void exponentiate_rows(int rows, KeyRange keys) {
    int row = 0;
    for (; row + kTileRows <= rows; row += kTileRows) exponentiate_panels<kTileRows, kScores>(row, keys);
    for (; row + 4 <= rows; row += 4) exponentiate_panels<4, kScores>(row, keys);
    for (; row + 2 <= rows; row += 2) exponentiate_panels<2, kScores>(row, keys);
    for (; row < rows; ++row) exponentiate_panels<1, kScores>(row, keys);
  }

  template <int Rows, Scores kScores>
  void exponentiate_panels(int row, KeyRange keys) {
    bool begun = false;
    for (std::int64_t panel = keys.first / kPanel * kPanel; panel < keys.last; panel += kPanel, begun = true) {
      const std::int64_t begin = larger(panel, strip_.begin), end = smaller(panel + kPanel, round_up(keys.last, kWidth));
      const int vectors = static_cast<int>((end - begin) / kWidth);
      const BlockKind block = kScores == Scores::plain ? BlockKind::full : strip_.blocks.at(strip_.first_key + panel);
      if (kScores != Scores::plain && block == BlockKind::skip) {
        for (int i = 0; i < Rows; ++i) clear(s_.scores + (row + i) * s_.stride, begin, end);
        continue;
      }
      if (attention_weights_.wanted()) attention_weights_.template fetch<Rows>(strip_.first_row + row, strip_.first_key + panel);
      strip_.masks_to_apply = block == BlockKind::full ? 0 : task_.mask_count;
      if (kScores == Scores::masked && block == BlockKind::full && vectors == kTileVectors) {
        exponentiate_tile<Rows, kTileVectors, Scores::plain>(row, panel, begin, begun);
      } else if (vectors == kTileVectors) {
        exponentiate_tile<Rows, kTileVectors, kScores>(row, panel, begin, begun);
      } else {
        with_count<kTileVectors - 1>(vectors, [&](auto count) { exponentiate_tile<Rows, count(), kScores>(row, panel, begin, begun); });
      }
    }
  }

  // Computes exp(score - reference) of a tile, with 0 outside of a row's key range. If `begun`, an earlier tile of the key block has set the references and the
  // sums of the rows.
  template <int Rows, int Columns, Scores kScores>
  POLYHEAD_INLINE void exponentiate_tile(int row, std::int64_t panel, std::int64_t begin, bool begun) {
    if constexpr (kScores == Scores::biased) fetch_bias<Rows>(row, begin);
    const std::int64_t end = begin + Columns * kWidth, first = strip_.first_row + row;
    T* const scores = s_.scores + row * s_.stride + begin;
    Vector<T> x[Rows][Columns];
    // The first tile of a strip multiplies the panel with all rows of the strip at once, because transposing the panel takes as long as multiplying it.
    bool multiplied = task_.rule != nullptr;
    if constexpr (Columns == kTileVectors) {
      multiplied = multiplied || operands_.multiply_stored_keys(operands_.q(strip_.first_row), row == 0 ? strip_.rows : 0, panel, scores, s_.stride);
    }
    if (multiplied) {
      for_each_vector<Rows, Columns, T>(x, [&](int i, int j, Vector<T>& value) { value = load_vector(scores + i * s_.stride + j); });
    } else {
      sum_tile<Rows, Columns, false, From::second_cache, T, Operand>({.depth = s_.depth,
                                                             .a = operands_.q(strip_.first_row),
                                                             .a_stride = operands_.q_stride(),
                                                             .b = operands_.k_panel(panel) + (begin - panel),
                                                             .b_stride = kPanel},
                                                            row, 0, x);
    }
    const auto store = [&] {
      for_each_vector<Rows, Columns, T>(x, [&](int i, int j, Vector<T> value) { store_vector<T>(value, scores + i * s_.stride + j); });
    };
    if (kScores == Scores::general || (kScores != Scores::plain && strip_.first_key + end > task_.keys)) {
      store();
      return exponentiate_in_memory(row, Rows, begin, end, begun);
    }
    if constexpr (kScores != Scores::plain) {
#pragma GCC unroll 16
      for (int i = 0; i < Rows; ++i) strip_.template finish_row<Columns, kScores == Scores::biased>(strip_.lines[row + i], begin, x[i]);
    }
    if (begin < strip_.inner.first || end > strip_.inner.last) {
#pragma GCC unroll 16
      for (int i = 0; i < Rows; ++i) keep_between<T>(strip_.lines[row + i].own, begin, x[i]);
    }
    if (!begun) {
#pragma GCC unroll 16
      for (int i = 0; i < Rows; ++i) softmax_.set_reference(first + i, largest_lane<T>(largest_of_vectors<T>(x[i])));
    } else {
      unsigned above = 0;
#pragma GCC unroll 16
      for (int i = 0; i < Rows; ++i) above |= lanes_above<T>(largest_of_vectors<T>(x[i]), softmax_.limit(first + i));
      if (above != 0) [[unlikely]] {
        store();
        return exponentiate_raised(row, Rows, begin, end);
      }
    }
    T* to = scores;
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i, to += s_.stride) {
      softmax_.exponentiate(first + i, !begun, x[i]);
#pragma GCC unroll 4
      for (int j = 0; j < Columns; ++j) store_vector<T>(x[i][j], to + j * kWidth);
    }
  }

  // Does the work of exponentiate_tile() by loops over memory instead of registers, for `rows` rows and the keys [begin, end). s_.scores holds the products q k.
  __attribute__((noinline)) void exponentiate_in_memory(int row, int rows, std::int64_t begin, std::int64_t end, bool begun) {
    for (int i = row; i < row + rows; ++i) {
      const std::int64_t index = strip_.first_row + i, low = larger(strip_.lines[i].own.first, begin), high = smaller(strip_.lines[i].own.last, end);
      T* const x = s_.scores + i * s_.stride;
      if (!begun) softmax_.begin(index);
      if (low < high) {
        finish_scores<T>(task_, s_.rows[index], scale_.factor, strip_.first_key + begin, low - begin, high - begin, x + begin, nullptr, s_.bytes);
      }
      for (std::int64_t s = begin; s < end; ++s) x[s] = s >= low && s < high ? x[s] : -kInfinity<T>;
      raise_row(i, begin, end);
      softmax_.exponentiate_in_memory(index, begin, end, x);
    }
  }

  // Prefetches the bias of a tile while the tile's product is computed.
  template <int Rows>
  POLYHEAD_INLINE void fetch_bias(int row, std::int64_t begin) const {
    const std::int64_t bytes = strip_.has_narrow_bias() ? sizeof(bf16) : sizeof(T);
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kTileVectors; ++j) __builtin_prefetch(static_cast<const char*>(strip_.lines[row + i].bias) + (begin + j * kWidth) * bytes);
    }
  }

  // Completes exponentiate_tile() for a tile in which some score exceeds its row's reference by too much. The tile's scores were stored in memory.
  __attribute__((noinline)) void exponentiate_raised(int row, int rows, std::int64_t begin, std::int64_t end) {
    for (int i = row; i < row + rows; ++i) {
      raise_row(i, begin, end);
      softmax_.exponentiate_in_memory(strip_.first_row + i, begin, end, s_.scores + i * s_.stride);
    }
  }

  // Raises the reference of the strip's row i if a score of the keys [begin, end) exceeds the reference by too much. The row's exponentials before key `begin` are
  // then multiplied by exp(old reference - new reference).
  void raise_row(int i, std::int64_t begin, std::int64_t end) {
    T* const x = s_.scores + i * s_.stride;
    const T largest = largest_of(x, begin, end);
    if (!(largest > softmax_.limit(strip_.first_row + i))) return;
    const T factor = softmax_.raise(strip_.first_row + i, largest);
    for (std::int64_t s = strip_.begin; s < begin; s += kWidth) store_vector<T>(load_vector(x + s) * factor, x + s);
  }

  // Adds the NaN and infinities of v to the rows that attend to their keys, and to no other rows. The product used a copy of v in which they are 0. `own` holds
  // the rows' factors for the key block, or is nullptr if the factors are 1.
  void add_non_finite_values(int rows, const T* own) {
    for (int i = 0; i < rows; ++i) {
      const KeyRange& keys = strip_.lines[i].own;
      const T* p = s_.scores + i * s_.stride;
      for (std::int64_t s = keys.first; s < keys.last; ++s) {
        if (!attends_to(task_, s_.rows[strip_.first_row + i], strip_.first_key + s)) continue;
        with_key_storage<T>(task_.key_dtype, task_.v.data, [&](auto* data) {
          add_non_finite<T>(data + (strip_.first_key + s) * task_.v.row, task_.v.column, task_.v_width, p[s], sums_of(strip_.first_row + i),
                            own == nullptr ? T{1} : own[i], RowScales<T>(task_.v_scale, strip_.first_key + s).of(0, T{1}));
        });
      }
    }
  }

  void drop(int i) {
    const KeyRange& own = strip_.lines[i].own;
    if (own.empty()) return;
    const std::uint8_t* keep = keep_bytes(task_, s_.rows[strip_.first_row + i], strip_.first_key, own.first, own.last, s_.bytes);
    T* x = s_.scores + i * s_.stride;
    for (std::int64_t s = own.first; s < own.last; ++s) x[s] = keep[s] != 0 ? x[s] : T{0};
  }

  KeyRange keys_of(std::int64_t row) const { return strip_.ranged ? s_.spans[row] : task_keys_; }

  // Stores the exponentials of the key block for the attention weights. l holds the sums of the exponentials, or is nullptr if no row attends to a key of the
  // block.
  void store_exponentials(int rows, const T* l) {
    for (int i = 0; i < rows; ++i) {
      const std::int64_t row = strip_.first_row + i;
      attention_weights_.set_reference(row, strip_.first_key, l == nullptr || l[i] == 0 ? -kInfinity<T> : s_.reference[row]);
      const KeyRange all = keys_of(row), in_block{larger(all.first - strip_.first_key, 0), smaller(all.last - strip_.first_key, s_.keys)};
      attention_weights_.store(row, strip_.first_key, in_block, strip_.lines[i].own, s_.scores + i * s_.stride);
    }
  }

  void store_attention_weights(int rows) {
    for (int i = 0; i < rows && attention_weights_.wanted(); ++i) {
      const std::int64_t row = strip_.first_row + i;
      attention_weights_.finish(row, keys_of(row), s_.m[row], s_.l[row], task_.sink.data != nullptr ? s_.share[row] : T{1});
    }
  }

  // Stores the strip's rows in `out`.
  void store_strip(int rows) {
    constexpr T kNone[kMostStripRows] = {};
    if (s_.started[strip_.first_row / strip_rows_] == 0) softmax_.set_rows(strip_.first_row, rows, kNone, kNone);
    T* const o = sums_of(strip_.first_row);
    const Row* const first = s_.rows + strip_.first_row;
    add_sinks<T>(task_, scale_, score_exp_of(task_, scale_).factor, first, rows, sums_stride_, s_.m + strip_.first_row, s_.l + strip_.first_row, o, s_.share + strip_.first_row);
    store_out<T>(task_, first, rows, o, sums_stride_, s_.l + strip_.first_row);
  }

  const ForwardTask& task_;
  const ScoreScale<T> scale_;
  OnlineSoftmax<T> softmax_;
  const bool in_place_;  // true: rows can be stored in `out` directly from registers
  const int strip_rows_;
  Scratch<T> s_;
  std::int64_t sums_stride_;  // distance between rows of the sums o
  Operands operands_{task_, scale_.power, s_};
  AttentionWeightRows<T> attention_weights_{task_, score_exp_of(task_, scale_), s_};
  KeyRange task_keys_{0, 0};
  bool non_finite_ = false;  // true: v has NaN or infinities in this or an earlier key block
  ForwardStrip<T, kNative> strip_{task_, s_, scale_.factor};  // the current strip of rows, in the current key block
};

// This is a function in an unnamed namespace and not a lambda in the table below. A lambda would be a weak symbol, and the linker could use the code of another
// instruction set for it.
bool reads_stored(const ForwardTask& task) {
  return task.dtype == DType::f64 ? reads_stored_values<double>(task) : reads_stored_values<float>(task);
}

}  // namespace

extern const ForwardKernels forward_kernels;
#ifdef POLYHEAD_BASE_ISA
constinit const ForwardKernels forward_kernels = {
    true, native_scratch_bytes<Scratch, POLYHEAD_BASE_ISA::forward_kernels, &ForwardKernels::forward_scratch, ForwardTask>,
    run_native_kernel<Forward, POLYHEAD_BASE_ISA::forward_kernels, &ForwardKernels::forward, ForwardTask>, reads_stored};
#else
template <class T>
using PlainForward = Forward<T>;
constinit const ForwardKernels forward_kernels = {false, scratch_bytes<Scratch, ForwardTask>, run_kernel_or_one_key<PlainForward, ForwardTask>, reads_stored};
#endif

}  // namespace polyhead::cpu::POLYHEAD_ISA
