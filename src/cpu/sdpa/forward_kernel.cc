// out[t] = sum_s drop(p)[t,s] v[s],  p = exp(score - lse)                                (docs/maths.md, eq. 1-4)
//
// Tile after tile of keys (online_softmax.h): a strip of rows' scores and their exponentials, then their product with the values.
#include "cpu/sdpa/forward_operands.h"
#include "cpu/sdpa/kernels.h"
#include "cpu/sdpa/online_softmax.h"
#include "cpu/sdpa/weight_rows.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

template <class T>
class Forward {
 public:
  Forward(const ForwardTask& task, void* memory)
      : task_(task),
        scale_(task.scale),
        softmax_(reference_unit(task, scale_), s_),
        in_place_(task.partial == nullptr && stores_in_place<T>(task)),
        strip_rows_(strip_rows<T>(task)),
        ranged_(task.banded || task.lengths != nullptr),
        apply_(what_applies(task)) {
    Scratch<T>::layout(task, memory, s_);
  }

  void run() {
    load_rows();
    for (std::int64_t row = 0; row < task_.rows; row += s_.turn_rows) run_turn(row, smaller(row + s_.turn_rows, task_.rows));
    if (task_.partial == nullptr) store_lse<T>(task_, reference_unit(task_, scale_), s_.rows, task_.rows, s_.reference, s_.l);
  }

 private:
  static constexpr int kWidth = kLanes<T>, kPanel = kPanelKeys<T>;

  // All keys, for some of the rows.
  void run_turn(std::int64_t first_row, std::int64_t end) {
    const bool loaded = first_row > 0;
    for (first_ = whole_.first / s_.keys * s_.keys; first_ < whole_.last; first_ += s_.keys) {
      operands_.load_keys(first_, {larger(whole_.first - first_, 0), smaller(whole_.last - first_, s_.keys)}, loaded);
      spoilt_ |= !operands_.finite();
      const bool last = first_ + s_.keys >= whole_.last;
      for (strip_ = first_row; strip_ < end; strip_ += strip_rows_) {
        const int rows = static_cast<int>(smaller(strip_rows_, end - strip_));
        if (!multiply_strip(rows, last) && last) store_strip(rows);  // while its sums are in the first-level cache
        if (last) store_weights(rows);
      }
    }
    if (!whole_.empty()) return;
    for (strip_ = first_row; strip_ < end; strip_ += strip_rows_) {
      const int rows = static_cast<int>(smaller(strip_rows_, end - strip_));
      store_strip(rows);
      store_weights(rows);
    }
  }

  // What becomes of products before they are scores, and where. Each case has tiles of its own: the rare ones would cost the others
  // registers.
  enum class Apply : std::uint8_t { nothing, masks, bias_and_masks, anything };  // the last in memory, the others in registers

  static Apply what_applies(const ForwardTask& task) {
    bool in_registers =
        task.softcap <= 0 && task.kinds == nullptr && (task.bias.data == nullptr || (task.dtype == kOwnStorage<T> && task.bias.column == 1));
    for (int i = 0; i < task.mask_count; ++i) in_registers &= task.masks[i].column == 1;
    if (!in_registers) return Apply::anything;
    return task.bias.data != nullptr ? Apply::bias_and_masks : task.mask_count != 0 ? Apply::masks : Apply::nothing;
  }

  // A row of the strip within the key block; its operands begin at the block's first key.
  struct Line {
    Span own;
    const T* bias;
    const std::uint8_t* masks[2];
  };

  void load_rows() {
    whole_ = ranged_ ? Span{task_.keys, 0} : Span{task_.first_key, smaller(task_.keys, task_.last_key)};
    Row next{task_.first_row, task_.first_row / task_.queries, task_.first_row % task_.queries};
    for (std::int64_t i = 0; i < task_.rows; ++i) {
      const Row r = s_.rows[i] = next;
      next = r.query + 1 < task_.queries ? Row{r.number + 1, r.head, r.query + 1} : Row{r.number + 1, r.head + 1, 0};
      if (!ranged_) continue;
      const Span all = span_of(task_, r), span = s_.spans[i] = {larger(all.first, task_.first_key), smaller(all.last, task_.last_key)};
      if (!span.empty()) whole_ = {smaller(whole_.first, span.first), larger(whole_.last, span.last)};
    }
    for (std::int64_t i = 0; i * strip_rows_ < task_.rows; ++i) s_.started[i] = 0;
    operands_.load_queries();
  }

  // The strip's rows within the key block; returns the keys that any of them has.
  Span load_lines(int rows) {
    const Span all{larger(whole_.first - first_, 0), smaller(whole_.last - first_, s_.keys)};
    Span keys = ranged_ ? Span{s_.keys, 0} : all;
    inner_ = ranged_ ? Span{0, s_.keys} : all;
    for (int i = 0; i < rows; ++i) {
      Line& line = lines_[i];
      line.own = all;
      if (!ranged_) continue;
      const Span& span = s_.spans[strip_ + i];
      line.own = {larger(span.first - first_, 0), smaller(span.last - first_, s_.keys)};
      if (!line.own.empty()) keys = {smaller(keys.first, line.own.first), larger(keys.last, line.own.last)};
      inner_ = {larger(inner_.first, line.own.first), smaller(inner_.last, line.own.last)};
    }
    if (apply_ != Apply::masks && apply_ != Apply::bias_and_masks) return keys;
    for (int i = 0; i < rows; ++i) {
      const Row& row = s_.rows[strip_ + i];
      if (task_.bias.data != nullptr) lines_[i].bias = row_of(task_.bias, static_cast<const T*>(task_.bias.data), row) + first_;
      for (int m = 0; m < task_.mask_count; ++m)
        lines_[i].masks[m] = row_of(task_.masks[m], static_cast<const std::uint8_t*>(task_.masks[m].data), row) + first_;
    }
    return keys;
  }

  // Returns whether its rows are stored.
  bool multiply_strip(int rows, bool last) {
    const Span keys = load_lines(rows);
    if (keys.empty()) return false;
    begin_ = keys.first / kWidth * kWidth;
    raised_ = false;
    std::uint8_t& started = s_.started[strip_ / strip_rows_];
    begun_ = started != 0;
    soften(rows, keys);
    if (weights_.wanted()) take_weights(rows);
    for (int i = 0; i < rows && task_.dropout; ++i) drop(i);
    operands_.fetch_queries(strip_ + strip_rows_, strip_rows_);
    // Summed from zero per key block and added then: the error grows with the number of blocks, not of keys.
    T divisor[kMostStripRows + kWidth], reciprocal[kMostStripRows + kWidth];
    const bool finish = last && !spoilt_ && in_place_ && s_.rows[strip_ + rows - 1].head == s_.rows[strip_].head;
    if (finish) {  // the divisions end while the product runs
      softmax_.add_up(strip_, rows);
      find_divisors<T>(task_, rows, s_.l + strip_, divisor, reciprocal);
    }
    Product<T> values{.depth = keys.last - keys.first,
                      .a = s_.scores + keys.first,
                      .a_stride = s_.stride,
                      .b = operands_.v() + keys.first * s_.v_padded,
                      .b_stride = s_.v_padded,
                      .c = s_.o + strip_ * s_.v_padded,
                      .c_stride = s_.v_padded,
                      .factor = started != 0 && raised_ ? factor_ : nullptr,
                      .add = started != 0};
    if (finish) {
      const Row& row = s_.rows[strip_];
      values.quotient = static_cast<T*>(task_.out.data) + row.head * task_.out.head + row.query * task_.out.row;
      values.quotient_stride = task_.out.row, values.divisor = divisor, values.reciprocal = reciprocal;
    }
    multiply<false, From::second_cache, T>(values, rows, static_cast<int>(s_.v_padded / kWidth));
    started = 1;
    if (!operands_.finite()) add_spoilt_values(rows);
    return finish;
  }

  void soften(int rows, Span keys) {
    if (apply_ == Apply::nothing) soften_strip<Apply::nothing>(rows, keys);
    if (apply_ == Apply::masks) soften_strip<Apply::masks>(rows, keys);
    if (apply_ == Apply::bias_and_masks) soften_strip<Apply::bias_and_masks>(rows, keys);
    if (apply_ == Apply::anything) soften_strip<Apply::anything>(rows, keys);
  }

  template <Apply kApply>
  void soften_strip(int rows, Span keys) {
    int row = 0;
    for (; row + kTileRows <= rows; row += kTileRows) soften_panels<kTileRows, kApply>(row, keys);
    for (; row + 4 <= rows; row += 4) soften_panels<4, kApply>(row, keys);
    for (; row + 2 <= rows; row += 2) soften_panels<2, kApply>(row, keys);
    for (; row < rows; ++row) soften_panels<1, kApply>(row, keys);
  }

  template <int Rows, Apply kApply>
  void soften_panels(int row, Span keys) {
    bool begun = begun_;
    for (std::int64_t panel = keys.first / kPanel * kPanel; panel < keys.last; panel += kPanel, begun = true) {
      const std::int64_t begin = larger(panel, begin_), end = smaller(panel + kPanel, round_up(keys.last, kWidth));
      const int vectors = static_cast<int>((end - begin) / kWidth);
      if (weights_.wanted()) weights_.template fetch<Rows>(strip_ + row, first_ + panel);
      if (vectors == kTileVectors) {
        soften_tile<Rows, kTileVectors, kApply>(row, panel, begin, begun);
      } else {
        with_count<kTileVectors - 1>(vectors, [&](auto count) { soften_tile<Rows, count(), kApply>(row, panel, begin, begun); });
      }
    }
  }

  // The tile's probabilities relative to exp(reference), zero outside of a row's own keys: scores in registers from the product to here.
  // `begun`: some of its rows may have sums already.
  template <int Rows, int Columns, Apply kApply>
  POLYHEAD_INLINE void soften_tile(int row, std::int64_t panel, std::int64_t begin, bool begun) {
    if constexpr (kApply == Apply::bias_and_masks) fetch_bias<Rows>(row, begin);
    Vector<T> x[Rows][Columns];
    sum_tile<Rows, Columns, false, From::second_cache, T>({.depth = task_.qk_width,
                                                           .a = operands_.q(strip_),
                                                           .a_stride = operands_.q_stride(),
                                                           .b = operands_.k() + panel * task_.qk_width + (begin - panel),
                                                           .b_stride = kPanel},
                                                          row, 0, x);
    const std::int64_t end = begin + Columns * kWidth, first = strip_ + row;
    T* const scores = s_.scores + row * s_.stride + begin;
    const auto store = [&] {
      for_each_vector<Rows, Columns, T>(x, [&](int i, int j, Vector<T> value) { store_vector<T>(value, scores + i * s_.stride + j); });
    };
    if (kApply == Apply::anything || (kApply != Apply::nothing && first_ + end > task_.keys)) {
      store();
      return soften_in_memory(row, Rows, begin, end, true, begun);
    }
    if constexpr (kApply != Apply::nothing) {
#pragma GCC unroll 16
      for (int i = 0; i < Rows; ++i) finish_row<Columns, kApply == Apply::bias_and_masks>(lines_[row + i], begin, x[i]);
    }
    if (begin < inner_.first || end > inner_.last) {
#pragma GCC unroll 16
      for (int i = 0; i < Rows; ++i) keep_between<T>(lines_[row + i].own, begin, x[i]);
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
        return soften_in_memory(row, Rows, begin, end, false, true);
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

  // The same for rows of a tile of the keys [begin, end) whose products, or scores if they are finished, lie in s_.scores.
  __attribute__((noinline)) void soften_in_memory(int row, int rows, std::int64_t begin, std::int64_t end, bool finish, bool begun) {
    for (int i = row; i < row + rows; ++i) {
      const std::int64_t index = strip_ + i, low = larger(lines_[i].own.first, begin), high = smaller(lines_[i].own.last, end);
      T* const x = s_.scores + i * s_.stride;
      if (!begun) softmax_.begin(index);
      if (finish && low < high) {
        finish_scores<T>(task_, s_.rows[index], scale_.factor, first_ + begin, low - begin, high - begin, x + begin, nullptr, s_.bytes);
      }
      for (std::int64_t s = begin; s < end; ++s) x[s] = s >= low && s < high ? x[s] : -kInfinity<T>;
      const T largest = largest_of(x, begin, end);
      if (largest > softmax_.limit(index)) raise(i, begin, largest);
      softmax_.exponentiate_in_memory(index, begin, end, x);
    }
  }

  // A tile's bias, while its product runs.
  template <int Rows>
  POLYHEAD_INLINE void fetch_bias(int row, std::int64_t begin) const {
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kTileVectors; ++j) __builtin_prefetch(lines_[row + i].bias + begin + j * kWidth);
    }
  }

  // Bias and masks of whole vectors of keys that exist.
  template <int Columns, bool kBias>
  POLYHEAD_INLINE void finish_row(const Line& line, std::int64_t begin, Vector<T> (&x)[Columns]) const {
    if constexpr (kBias) {
#pragma GCC unroll 4
      for (int j = 0; j < Columns; ++j) x[j] = multiply_add<T>(x[j], broadcast(scale_.factor), load_vector(line.bias + begin + j * kWidth));
    }
    for (int m = 0; m < task_.mask_count; ++m) {
#pragma GCC unroll 4
      for (int j = 0; j < Columns; ++j)
        x[j] = where_bytes<T>(line.masks[m] + begin + j * kWidth, task_.masks[m].attend, x[j], -kInfinity<T>);
    }
  }

  // The reference of the strip's row i, whose scores before `begin` are summed: that is multiplied by exp(old - new).
  void raise(int i, std::int64_t begin, T largest) {
    const T factor = softmax_.raise(strip_ + i, largest);
    T* const x = s_.scores + i * s_.stride;
    for (std::int64_t s = begin_; s < begin; s += kWidth) store_vector<T>(load_vector(x + s) * factor, x + s);
    for (int j = 0; j < strip_rows_ && !raised_; ++j) factor_[j] = 1;
    raised_ = true;
    factor_[i] *= factor;
  }

  // NaN and infinities of v, to the rows that have these keys and to no other.
  void add_spoilt_values(int rows) {
    for (int i = 0; i < rows; ++i) {
      const Span& own = lines_[i].own;
      const T* p = s_.scores + i * s_.stride;
      for (std::int64_t s = own.first; s < own.last; ++s) {
        if (!masks_keep(task_, s_.rows[strip_ + i], first_ + s)) continue;
        with_storage<T>(task_.dtype, task_.v.data, [&](auto* data) {
          add_spoilt<T>(data + (first_ + s) * task_.v.row, task_.v.column, task_.v_width, p[s], s_.o + (strip_ + i) * s_.v_padded);
        });
      }
    }
  }

  void drop(int i) {
    const Span& own = lines_[i].own;
    if (own.empty()) return;
    const std::uint8_t* keep = keep_bytes(task_, s_.rows[strip_ + i], first_, own.first, own.last, s_.bytes);
    T* x = s_.scores + i * s_.stride;
    for (std::int64_t s = own.first; s < own.last; ++s) x[s] = keep[s] != 0 ? x[s] : T{0};
  }

  Span keys_of(std::int64_t row) const { return ranged_ ? s_.spans[row] : whole_; }

  void take_weights(int rows) {
    for (int i = 0; i < rows; ++i) {
      const std::int64_t row = strip_ + i;
      if (raised_ && begun_) weights_.rescale(row, {keys_of(row).first, smaller(keys_of(row).last, first_)}, factor_[i]);
      weights_.take(row, first_, lines_[i].own, s_.scores + i * s_.stride);
    }
  }

  void store_weights(int rows) {
    for (int i = 0; i < rows && weights_.wanted(); ++i) weights_.finish(strip_ + i, keys_of(strip_ + i), s_.l[strip_ + i]);
  }

  // The strip's rows as they leave the task.
  void store_strip(int rows) {
    const bool started = s_.started[strip_ / strip_rows_] != 0;
    T* const l = s_.l + strip_;
    if (started) {
      softmax_.add_up(strip_, rows);
    } else {
      for (int i = 0; i < rows; ++i) s_.reference[strip_ + i] = l[i] = 0;
    }
    T* const o = s_.o + strip_ * s_.v_padded;
    if (task_.partial == nullptr) return store_out<T>(task_, s_.rows + strip_, rows, o, s_.v_padded, l);
    store_partial<T>(task_, strip_, rows, started ? o : nullptr, s_.v_padded, s_.reference + strip_, l);
  }

  const ForwardTask& task_;
  const ScoreScale<T> scale_;
  OnlineSoftmax<T> softmax_;
  const bool in_place_;  // rows go from the product to `out`
  const int strip_rows_;
  const bool ranged_;  // rows have keys of their own; else all have whole_
  const Apply apply_;
  Scratch<T> s_;
  ForwardOperands<T> operands_{task_, scale_.power, s_};
  WeightRows<T> weights_{task_, s_};
  Span whole_{0, 0};
  bool spoilt_ = false;  // v is not finite in this or an earlier block
  // Of the key block and strip at hand:
  std::int64_t first_ = 0, strip_ = 0, begin_ = 0;
  Span inner_{0, 0};  // the keys that all its rows have
  Line lines_[kMostStripRows];
  bool begun_ = false, raised_ = false;  // the strip has met keys; the reference of one of its rows was raised
  T factor_[kMostStripRows];             // then: what the sums of earlier key blocks are to be multiplied with
};

template <class T>
std::int64_t scratch_bytes(const ForwardTask& task) {
  Scratch<T> unused;
  return Scratch<T>::layout(task, nullptr, unused);
}

}  // namespace

std::int64_t sdpa_forward_scratch(const ForwardTask& task) {
  return task.dtype == DType::f64 ? scratch_bytes<double>(task) : scratch_bytes<float>(task);
}

void sdpa_forward(const ForwardTask& task, void* scratch) {
  task.dtype == DType::f64 ? Forward<double>(task, scratch).run() : Forward<float>(task, scratch).run();
}

}  // namespace polyhead::cpu::POLYHEAD_ISA
