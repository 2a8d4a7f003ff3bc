// The kernel of attention maps. It computes chosen rows of the map of one head:
// p[t,s] = exp(score[t,s] - m[t]) / sum_s exp(score[t,s] - m[t]),  m[t] = max_s score[t,s]          (docs/maths.md, eq. 10)
//
// The keys of a call are packed once. For a strip of rows, the scores with all keys are stored in memory, and the maximum and the sum of a row are computed from
// these scores and not from a stored lse.
#include "cpu/arena.h"
#include "cpu/sdpa/apply_score_rule.h"
#include "cpu/sdpa/dropout.h"
#include "cpu/sdpa/kernels.h"
#include "cpu/sdpa/pack.h"
#include "cpu/sdpa/sink.h"
#include "cpu/sdpa/softmax.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

template <class T>
struct MapsScratch {
  T *q, *k, *lines, *scores;
  double* row;
  std::uint8_t* bytes;
  std::int64_t stride;

  static std::int64_t layout(const MapsTask& task, void* memory, MapsScratch& s) {
    const std::int64_t keys = round_up(task.keys, kPanelKeys<T>);
    s.stride = keys + 64 / static_cast<std::int64_t>(sizeof(T));
    Arena arena(memory);
    arena.allocate(s.q, kStripRows * task.qk_width);
    arena.allocate(s.k, keys * task.qk_width);
    arena.allocate(s.lines, kLanes<T> * task.qk_width);
    arena.allocate(s.scores, kStripRows * s.stride);
    arena.allocate(s.row, task.consume != nullptr ? keys : 0);
    arena.allocate(s.bytes, keys + kKeepMargin);
    return arena.used();
  }
};

template <class T>
class Maps {
 public:
  Maps(const MapsTask& task, void* memory) : task_(task), scale_(task), written_{0, task.keys} { MapsScratch<T>::layout(task, memory, s_); }

  void run() {
    pack_keys();
    for (std::int64_t strip = 0; strip < task_.count; strip += kStripRows) {
      const int rows = static_cast<int>(smaller(kStripRows, task_.count - strip));
      KeyRange keys = load_rows(strip, rows);
      multiply_rows(strip, rows, keys);
      if (task_.rule != nullptr && !keys.empty()) apply_score_rule<T>(task_, scale_.of_products, rows_, rows, 0, keys, StripBlocks(), s_.stride, s_.scores, nullptr);
      for (int i = 0; i < rows; ++i) {
        double entropy = 0, sink = 0;
        const double factor = !task_.probability ? finish_row(i) : task_.consume != nullptr ? exponentiate_row<true>(i, &entropy, &sink) : exponentiate_row<false>(i, nullptr, nullptr);
        give_row(i, strip + i, factor, entropy, sink);
      }
    }
  }

 private:
  static constexpr int kWidth = kLanes<T>, kPanel = kPanelKeys<T>;

  Row row_of_chosen(std::int64_t i) const {
    const std::int64_t t = task_.chosen[i];
    return {task_.head * task_.queries + t, task_.head, t};
  }

  // Packs the panels of keys to which some row attends: with a causal mask half of the panels on average, with a window a few of them.
  void pack_keys() {
    KeyRange keys{task_.keys, 0};
    for (std::int64_t i = 0; i < task_.count; ++i) {
      const KeyRange own = range_of(task_, row_of_chosen(i));
      if (!own.empty()) keys = {smaller(keys.first, own.first), larger(keys.last, own.last)};
    }
    const std::int64_t first = keys.first / kPanel * kPanel;
    if (keys.empty()) return;
    with_key_storage<T>(task_.key_dtype, task_.k.data, [&](auto* data) {
      const StoredRows k(data + first * task_.k.row, task_.k, task_.qk_width, task_.keys - first, T{1}, RowScales<T>(task_.k_scale, first));
      pack_transposed(k, static_cast<int>(keys.last - first), s_.lines, s_.k + first * task_.qk_width);
    });
  }

  // Loads the strip's queries. Returns the smallest range that contains the keys of all rows of the strip.
  KeyRange load_rows(std::int64_t strip, int rows) {
    KeyRange keys{task_.keys, 0};
    for (int i = 0; i < rows; ++i) {
      rows_[i] = row_of_chosen(strip + i);
      spans_[i] = range_of(task_, rows_[i]);
      if (!spans_[i].empty()) keys = {smaller(keys.first, spans_[i].first), larger(keys.last, spans_[i].last)};
      with_storage<T>(task_.dtype, task_.q.data, [&](auto* data) {
        widen_row<T>(row_of(task_.q, data, rows_[i]), task_.q.column, task_.qk_width, scale_.power, s_.q + i * task_.qk_width);
      });
    }
    return keys;
  }

  void multiply_rows(std::int64_t strip, int rows, KeyRange keys) {
    for (std::int64_t panel = keys.first / kPanel * kPanel; panel < keys.last; panel += kPanel) {
      const std::int64_t end = smaller(panel + kPanel, round_up(keys.last, kWidth));
      multiply<false, From::second_cache, T>({.depth = task_.qk_width,
                                              .a = s_.q,
                                              .a_stride = task_.qk_width,
                                              .b = s_.k + panel * task_.qk_width,
                                              .b_stride = kPanel,
                                              .c = s_.scores + panel,
                                              .c_stride = s_.stride},
                                             rows, static_cast<int>((end - panel) / kWidth));
      if (task_.consume == nullptr && task_.out.column == 1) fetch_output(strip, rows, panel, smaller(panel + kPanel, task_.keys));
    }
  }

  // Prefetches the memory of `out` for the keys [first, last) of the strip's rows. Call it before the next panel is multiplied.
  void fetch_output(std::int64_t strip, int rows, std::int64_t first, std::int64_t last) const {
    with_storage<T>(task_.out_dtype, task_.out.data, [&](auto* data) {
      for (int i = 0; i < rows; ++i) {
        const auto* row = data + (strip + i) * task_.out.row;
        for (std::int64_t s = first; s < last; s += static_cast<std::int64_t>(64 / sizeof(*row))) __builtin_prefetch(row + s, 1);
      }
    });
  }

  T* scores_of(int i) const { return s_.scores + i * s_.stride; }

  // Replaces the row's products by scores that must still be multiplied by a factor, and returns this factor.
  double finish_row(int i) {
    const KeyRange& own = spans_[i];
    if (own.empty()) return 1;
    return static_cast<double>(finish_scores<T>(task_, rows_[i], scale_.factor, 0, own.first, own.last, scores_of(i), nullptr, s_.bytes));
  }

  // Replaces the row's products by attention weights that must still be multiplied by a factor, and returns this factor. Sets the key range of an empty row to
  // empty.
  template <bool kEntropy>
  double exponentiate_row(int i, double* entropy, double* sink) {
    KeyRange& own = spans_[i];
    T* x = scores_of(i);
    const T pending_scale = static_cast<T>(finish_row(i));
    const std::int64_t begin = own.first / kWidth * kWidth, end = own.empty() ? begin : round_up(own.last, kWidth);
    const T largest = largest_of(x, begin, end);
    // If all scores are -infinity, the reference is 0, so that exp(score - reference) is 0 and not NaN. If a score is NaN, the result stays NaN.
    T moment = 0;
    const T reference = largest == -kInfinity<T> ? T{0} : largest,
            of_keys = exponentiate<kEntropy>(x, begin, end, reference, scale_.exp(pending_scale), &moment);
    const T z = sink_of<T>(task_, rows_[i]);
    if (of_keys == 0) {
      own = {0, 0};
      if constexpr (kEntropy) *sink = z == -kInfinity<T> ? 0 : static_cast<double>(T{1} + z * T{0});  // NaN if the sink is not finite
      return 1;
    }
    const SumWithSink<T> total(of_keys, reference, pending_scale, z, scale_);
    const bool non_finite = !(total.sum * T{0} == 0);
    if (non_finite) spread_non_finite(task_, rows_[i], own, total.sum, x);
    const double factor = non_finite ? 1 : static_cast<double>(total.share) / static_cast<double>(total.sum);
    if (factor == 0) own = {0, 0};  // the sink has all of the row's attention weight
    if constexpr (kEntropy) {
      *sink = static_cast<double>(total.of_sink) / static_cast<double>(total.sum);
      const double exact = non_finite ? static_cast<double>(total.sum * T{0}) : entropy_of(factor, of_keys, static_cast<double>(moment) * static_cast<double>(pending_scale));
      *entropy = exact < 0 ? 0 : exact;  // rounding may make the entropy of a row with a single key negative
    }
    if (!task_.dropout) return factor;
    const std::uint8_t* keep = keep_bytes(task_, rows_[i], 0, own.first, own.last, s_.bytes);
    for (std::int64_t s = own.first; s < own.last; ++s) x[s] *= keep[s] != 0 ? T{1} : T{0};
    return factor * task_.dropout_scale;
  }

  // Returns the entropy -sum p log p for p = factor e, given sum = sum e and moment = sum e log e.
  static double entropy_of(double factor, T sum, double moment) {
    return factor == 0 ? 0 : 0 - factor * (moment + log<double>(broadcast(factor))[0] * static_cast<double>(sum));
  }

  // Multiplies the row by `factor`, and writes it to `out` or passes it to `consume`. Keys outside of the row's key range get the value of a masked key.
  void give_row(int i, std::int64_t index, double factor, double entropy, double sink) {
    T* x = scores_of(i);
    const KeyRange own = spans_[i].empty() ? KeyRange{0, 0} : spans_[i];
    const T nothing = task_.probability ? T{0} : -kInfinity<T>;
    if (task_.consume == nullptr) {
      for (std::int64_t s = 0; s < own.first; ++s) x[s] = nothing;
      for (std::int64_t s = own.last; s < task_.keys; ++s) x[s] = nothing;
      return narrow_row<T>(task_.out_dtype, x, task_.keys, static_cast<T>(factor), task_.out.data, index * task_.out.row, task_.out.column);
    }
    // s_.row still holds the previous row. Only the keys that were in its key range and are not in the new key range are cleared. In a long causal map these
    // are few.
    for (std::int64_t s = written_.first; s < smaller(own.first, written_.last); ++s) s_.row[s] = nothing;
    for (std::int64_t s = larger(own.last, written_.first); s < written_.last; ++s) s_.row[s] = nothing;
    for (std::int64_t s = own.first; s < own.last; ++s) s_.row[s] = static_cast<double>(x[s]) * factor;
    written_ = own;
    task_.consume(task_.consumer, index, s_.row, own, entropy, sink);
  }

  const MapsTask& task_;
  const ScoreScale<T> scale_;
  MapsScratch<T> s_;
  Row rows_[kStripRows];
  KeyRange spans_[kStripRows];
  KeyRange written_;  // key range of the row that s_.row holds; the elements outside of it have the value of a masked key
};

template <class T>
double sum_entropy_of_mean(const T* p, const T* q, std::int64_t count) {
  constexpr std::int64_t kBlock = 2048;  // number of terms that are summed in type T; the sums of such blocks are then added in float64
  double entropy = 0;
  for (std::int64_t first = 0; first < count; first += kBlock) {
    Vector<T> sum{};
    for_each_group<T>(first, smaller(first + kBlock, count), [&]<int kCount>(std::int64_t i) {
#pragma GCC unroll 4
      for (int j = 0; j < kCount; ++j) {
        const Vector<T> m = (load_vector(p + i + j * kLanes<T>) + load_vector(q + i + j * kLanes<T>)) * T{0.5};
        sum += m == T{0} ? Vector<T>{} : m * log<T>(m);
      }
    });
    entropy -= static_cast<double>(sum_of_lanes<T>(sum));
  }
  return entropy;
}

double entropy_of_mean(DType dtype, const void* p, const void* q, std::int64_t count) {
  return dtype == DType::f64 ? sum_entropy_of_mean(static_cast<const double*>(p), static_cast<const double*>(q), count)
                             : sum_entropy_of_mean(static_cast<const float*>(p), static_cast<const float*>(q), count);
}

}  // namespace

extern const MapsKernels maps_kernels;
constinit const MapsKernels maps_kernels = {scratch_bytes<MapsScratch, MapsTask>, run_kernel<Maps, MapsTask>, entropy_of_mean};

}  // namespace polyhead::cpu::POLYHEAD_ISA
