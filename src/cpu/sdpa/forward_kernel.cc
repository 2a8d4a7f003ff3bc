// out[t] = sum_s drop(p)[t,s] v[s],  p = exp(score - lse)                                (docs/maths.md, eq. 1-4)
//
// Key block after key block, each row keeps the largest score m so far, l = sum exp(score - m) and o = sum exp(score - m) v; where m grows,
// l and o are multiplied by exp(m_old - m_new) (Milakov and Gimelshein 2018; Dao et al. 2022). Scores of any size are exact: nothing
// but differences to the row's own largest score is exponentiated.
#include "cpu/sdpa/dropout.h"
#include "cpu/sdpa/kernels.h"
#include "cpu/sdpa/pack.h"
#include "cpu/arena.h"
#include "cpu/sdpa/softmax.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// Rows that share their scores in the first-level cache: 12 x 512 float32 are 24 KiB of 32. Two tiles of rows, so narrow values take 12 x 2.
constexpr int kStripRows = 2 * kTileRows;

// Scores of one key block. 512 keys of 64 + 64 float32 are 256 KiB: a quarter of a second-level cache of 1 MiB, beside the 192 KiB of a
// block of queries and their sums.
template <class T>
std::int64_t key_block(const HeadGroup& group) {
  const std::int64_t widest = larger(group.qk_width, group.v_width);
  const std::int64_t most = widest * static_cast<std::int64_t>(sizeof(T)) <= 512 ? 2048 / static_cast<std::int64_t>(sizeof(T)) : 256;
  return smaller(most, round_up(larger(group.keys, 1), 64));
}

// A row of scores is one line longer than the block: rows do not begin at the same offset of a page.
template <class T>
std::int64_t score_stride(std::int64_t keys) { return keys + 64 / static_cast<std::int64_t>(sizeof(T)); }

template <class T>
struct Scratch {
  T *q, *k, *v, *lines, *scores, *o, *largest, *sum;
  Row* rows;
  Span* spans;
  std::uint8_t *bytes, *started;  // scratch of a row; whether a strip of o is written yet
  std::int64_t v_padded, keys, stride;

  static std::int64_t layout(const ForwardTask& task, void* memory, Scratch& s) {
    constexpr std::int64_t kWidth = kLanes<T>;
    s.v_padded = round_up(task.v_width, kWidth);
    s.keys = key_block<T>(task);
    s.stride = score_stride<T>(s.keys);
    Arena arena(memory);
    const std::int64_t rows = round_up(task.rows, kWidth);
    arena.take(s.q, task.rows * task.qk_width);
    arena.take(s.k, s.keys * task.qk_width);
    arena.take(s.v, s.keys * s.v_padded);
    arena.take(s.lines, kWidth * task.qk_width);
    arena.take(s.scores, kStripRows * s.stride);
    arena.take(s.o, task.rows * s.v_padded);
    arena.take(s.largest, rows);
    arena.take(s.sum, rows);
    arena.take(s.rows, task.rows);
    arena.take(s.spans, task.rows);
    arena.take(s.bytes, s.keys + kPhiloxKeys);
    arena.take(s.started, task.rows / kStripRows + 1);
    return arena.used();
  }
};

template <class T>
class Forward {
 public:
  Forward(const ForwardTask& task, void* memory) : task_(task), scale_(task.scale) { Scratch<T>::layout(task, memory, s_); }

  void run() {
    load_rows();
    for (std::int64_t first = whole_.first / s_.keys * s_.keys; first < whole_.last; first += s_.keys) {
      const Span block{larger(whole_.first - first, 0), smaller(whole_.last - first, s_.keys)};
      load_keys(first, block);
      for (std::int64_t strip = 0; strip < task_.rows; strip += kStripRows) multiply_strip(first, strip);
    }
    store_rows();
  }

 private:
  static constexpr int kWidth = kLanes<T>, kPanel = kPanelKeys<T>;
  static constexpr DType kOwnStorage = sizeof(T) == 8 ? DType::f64 : DType::f32;
  static constexpr int kSlots = (kStripRows + kWidth - 1) / kWidth * kWidth;

  void load_rows() {
    whole_ = {task_.keys, 0};
    Row next{task_.first_row, task_.first_row / task_.queries, task_.first_row % task_.queries};
    for (std::int64_t i = 0; i < task_.rows; ++i) {
      const Row r = s_.rows[i] = next;
      next = r.query + 1 < task_.queries ? Row{r.number + 1, r.head, r.query + 1} : Row{r.number + 1, r.head + 1, 0};
      const Span span = s_.spans[i] = span_of(task_, r);
      if (!span.empty()) whole_ = {smaller(whole_.first, span.first), larger(whole_.last, span.last)};
      s_.largest[i] = -kInfinity<T>;
      s_.sum[i] = 0;
      s_.started[i / kStripRows] = 0;
      with_storage<T>(task_.dtype, task_.q.data, [&](auto* data) {
        widen_row<T>(row_of(task_.q, data, r), task_.q.column, task_.qk_width, scale_.of_q, s_.q + i * task_.qk_width);
      });
    }
  }

  void load_keys(std::int64_t first, Span block) {
    const std::int64_t from = block.first / kPanel * kPanel;
    const int count = static_cast<int>(block.last - from);
    with_storage<T>(task_.dtype, task_.k.data, [&](auto* data) {
      pack_transposed<T>(data + (first + from) * task_.k.row, task_.k.row, task_.k.column, count, task_.qk_width, s_.lines, s_.k + from * task_.qk_width);
    });
    finite_ = with_storage<T>(task_.dtype, task_.v.data, [&](auto* data) {
      return copy_rows<T>(data + (first + from) * task_.v.row, task_.v.row, task_.v.column, count, task_.v_width, s_.v_padded, T{1}, s_.v + from * s_.v_padded);
    });
    if (!finite_) drop_spoilt(s_.v + from * s_.v_padded, count * s_.v_padded, s_.v + from * s_.v_padded);
  }

  // The part of row `index` within the block, counted from the block's first key.
  Span part(std::int64_t index, std::int64_t first) const {
    const Span& span = s_.spans[index];
    return {larger(span.first - first, 0), smaller(span.last - first, s_.keys)};
  }

  void multiply_strip(std::int64_t first, std::int64_t strip) {
    const int rows = static_cast<int>(smaller(kStripRows, task_.rows - strip));
    Span keys{s_.keys, 0};
    for (int i = 0; i < rows; ++i) {
      const Span own = part(strip + i, first);
      if (!own.empty()) keys = {smaller(keys.first, own.first), larger(keys.last, own.last)};
    }
    if (keys.empty()) return;
    for (std::int64_t panel = keys.first / kPanel * kPanel; panel < keys.last; panel += kPanel) {
      const std::int64_t begin = larger(panel, keys.first / kWidth * kWidth), end = smaller(panel + kPanel, round_up(keys.last, kWidth));
      multiply<false, T>({.depth = task_.qk_width, .a = s_.q + strip * task_.qk_width, .a_stride = task_.qk_width,
                   .b = s_.k + panel * task_.qk_width + (begin - panel), .b_stride = kPanel, .c = s_.scores + begin, .c_stride = s_.stride},
                  rows, static_cast<int>((end - begin) / kWidth));
    }
    T factor[kSlots];
    soften_strip(first, strip, rows, keys, factor);
    // Summed from zero per key block and added then: the error grows with the number of blocks, not of keys.
    std::uint8_t& started = s_.started[strip / kStripRows];
    multiply<false, T>({.depth = keys.last - keys.first, .a = s_.scores + keys.first, .a_stride = s_.stride, .b = s_.v + keys.first * s_.v_padded,
                 .b_stride = s_.v_padded, .c = s_.o + strip * s_.v_padded, .c_stride = s_.v_padded,
                 .factor = started != 0 ? factor : nullptr},
                rows, static_cast<int>(s_.v_padded / kWidth));
    started = 1;
    if (!finite_) add_spoilt_values(first, strip, rows);
  }

  // NaN and infinities of v, to the rows that have these keys and to no other.
  void add_spoilt_values(std::int64_t first, std::int64_t strip, int rows) {
    for (int i = 0; i < rows; ++i) {
      const Span own = part(strip + i, first);
      const T* p = s_.scores + i * s_.stride;
      for (std::int64_t s = own.first; s < own.last; ++s) {
        if (!masks_keep(task_, s_.rows[strip + i], first + s)) continue;
        with_storage<T>(task_.dtype, task_.v.data, [&](auto* data) {
          add_spoilt<T>(data + (first + s) * task_.v.row, task_.v.column, task_.v_width, p[s], s_.o + (strip + i) * s_.v_padded);
        });
      }
    }
  }

  // The softmax of a strip over one key block: from products to probabilities relative to exp(largest), zero outside of a row's own keys.
  // `factor` becomes what the sums so far are to be multiplied with. The rows go through each step together, so that the latency of a row's
  // reduction is hidden behind the others.
  void soften_strip(std::int64_t first, std::int64_t strip, int rows, Span keys, T (&factor)[kSlots]) {
    T reference[kSlots], left = scale_.factor;
    for (int i = 0; i < kSlots; ++i) reference[i] = factor[i] = 0;
    for (int i = 0; i < rows; ++i) {
      const std::int64_t index = strip + i;
      const Span own = part(index, first);
      T *x = s_.scores + i * s_.stride, old = s_.largest[index], block = -kInfinity<T>;
      if (!own.empty()) {
        left = finish_scores<T>(task_, s_.rows[index], scale_.factor, first, own.first, own.last, x, nullptr, s_.bytes);
        block = largest_of(x, own.first / kWidth * kWidth, round_up(own.last, kWidth));
      }
      const T largest = s_.largest[index] = old > block ? old : block;
      // A row without a finite score so far: exp(-infinity - 0) = 0, and a NaN stays one.
      reference[i] = largest == -kInfinity<T> ? T{0} : largest;
      factor[i] = old - reference[i];
    }
    const ExpFactor<T>& unit = scale_.exp(left);
    for (int i = 0; i < kSlots; i += kWidth) store_vector<T>(exp_of_negative<T>(load_vector(factor + i), unit), factor + i);
    for (int i = 0; i < rows; ++i) {
      const std::int64_t index = strip + i;
      const Span own = part(index, first);
      T* x = s_.scores + i * s_.stride;
      std::int64_t begin = keys.last, end = keys.last;
      if (!own.empty()) {
        const T sum = exponentiate(x, own.first / kWidth * kWidth, round_up(own.last, kWidth), reference[i], unit);
        s_.sum[index] = s_.sum[index] * factor[i] + sum;
        if (task_.dropout) drop(s_.rows[index], first, own, x);
        begin = own.first, end = own.last;
      }
      for (std::int64_t s = keys.first; s < begin; ++s) x[s] = 0;
      for (std::int64_t s = end; s < keys.last; ++s) x[s] = 0;
    }
  }

  void drop(const Row& row, std::int64_t first, Span own, T* x) {
    const std::uint8_t* keep = keep_bytes(task_, row, first, own.first, own.last, s_.bytes);
    for (std::int64_t i = own.first; i < own.last; ++i) x[i] = keep[i] != 0 ? x[i] : T{0};
  }

  // out = o / l and lse = m + log l; a row without a finite score is zero and -infinity.
  void store_rows() {
    for (std::int64_t i = 0; i < task_.rows; ++i) {
      const Row& r = s_.rows[i];
      const std::int64_t offset = r.head * task_.out.head + r.query * task_.out.row;
      T* o = s_.o + i * s_.v_padded;
      if (s_.sum[i] == 0) clear(o, 0, s_.v_padded);
      const T divisor = s_.sum[i] == 0 ? T{1} : s_.sum[i] / static_cast<T>(task_.dropout_scale);
      const bool direct = task_.dtype == kOwnStorage && task_.out.column == 1 && task_.v_width % kWidth == 0;
      T* to = direct ? static_cast<T*>(task_.out.data) + offset : o;
      divide_row(o, divisor, to);
      if (!direct) narrow_row<T>(task_.dtype, o, task_.v_width, T{1}, task_.out.data, offset, task_.out.column);
    }
    if (task_.lse.data == nullptr) return;
    const bool natural = task_.softcap > 0 || task_.bias.data != nullptr;  // what finish_scores() left
    for (std::int64_t i = 0; i < task_.rows; i += kWidth) {
      const Vector<T> sum = load_vector(s_.sum + i), largest = load_vector(s_.largest + i);
      store_vector<T>(sum == T{0} ? broadcast(-kInfinity<T>) : largest * (natural ? T{1} : scale_.factor) + log<T>(sum), s_.sum + i);
    }
    for (std::int64_t i = 0; i < task_.rows; ++i) {
      const Row& r = s_.rows[i];
      static_cast<T*>(task_.lse.data)[r.head * task_.lse.head + r.query * task_.lse.row] = s_.sum[i];
    }
  }

  // o / divisor by its reciprocal and one step of Newton: as exact as a division, which takes 16 cycles a vector.
  void divide_row(const T* o, T divisor, T* to) const {
    const T reciprocal = 1 / divisor;
    for (std::int64_t d = 0; d < s_.v_padded; d += kWidth) {
      const Vector<T> x = load_vector(o + d), guess = x * reciprocal, rest = x - guess * divisor;
      store_vector<T>(rest == rest ? guess + rest * reciprocal : guess, to + d);  // infinity has no rest
    }
  }

  const ForwardTask& task_;
  const ScoreScale<T> scale_;
  Scratch<T> s_;
  Span whole_{0, 0};
  bool finite_ = true;
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
