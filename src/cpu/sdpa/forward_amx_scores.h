// Computes all scores of a strip with a key block by AMX, and then their exponentials as bfloat16 pairs. Only kernel sources (*_kernel.cc) include this file.
//
// Other kernels take the largest score of a row's first tile as the row's reference, and raise the reference when a later score is much larger (online_softmax.h).
// Here all scores are computed first, and the reference is the largest score. The exponential of the largest score is then 1, which bfloat16 holds without
// rounding, and exponentials can be rounded to pairs as soon as they are computed.
#pragma once

#include "cpu/power_for_bf16.h"
#include "cpu/sdpa/forward_amx.h"
#include "cpu/sdpa/forward_strip.h"
#include "cpu/sdpa/online_softmax.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// Replaces x by exp(factor (x - reference)), with the error of power_for_bf16(). If kSmall, |factor reference| is below 256, and the code computes factor x -
// (factor reference). Rounding the product in parentheses adds at most 5e-6 to the error, the same for all results of a row. If not kSmall, the code subtracts
// before it multiplies, which adds less error but takes one more instruction.
template <int kCount, bool kSmall>
POLYHEAD_INLINE void exp_for_bf16(Vector<float> (&x)[kCount], float reference, float factor) {
#pragma GCC unroll 4
  for (int j = 0; j < kCount; ++j) x[j] = kSmall ? multiply_add<float>(x[j], broadcast(factor), broadcast(-(reference * factor))) : (x[j] - reference) * factor;
  power_for_bf16<kCount>(x);
}

class AmxScores {
 public:
  AmxScores(ForwardStrip<float, true>& strip, const Scratch<float>& scratch, AmxOperands& operands) : strip_(strip), s_(scratch), operands_(operands) {}

  // Computes the scores of the rows for `keys`, the range that the rows attend to. Also finds, for each row and each vector lane, the largest score.
  void find(KeyRange keys) {
    for (int i = 0; i < strip_.rows; ++i) store_vector<float>(broadcast(-kInfinity<float>), largest_by_lane(i));
    if (strip_.scores == Scores::plain) find_scores<Scores::plain>(keys);
    if (strip_.scores == Scores::masked) find_scores<Scores::masked>(keys);
    if (strip_.scores == Scores::biased) find_scores<Scores::biased>(keys);
    if (strip_.scores == Scores::general) find_scores<Scores::general>(keys);
  }

  // Replaces scores by exponentials. l receives the sums of the exponentials before rounding. The product with v is later multiplied by correction = l / (sum
  // after rounding), which cancels rounding errors that all exponentials of a row share. If `kept`, the exponentials are also stored in float32.
  void exponentiate(KeyRange keys, bool kept, OnlineSoftmax<float>& softmax, float factor, float* l, float* correction) {
    constexpr float kMostRounded = 256;
    for (int i = 0; i < strip_.rows; ++i) {
      softmax.set_reference(strip_.first_row + i, largest_lane<float>(load_vector(largest_by_lane(i))));
      const float shift = s_.reference[strip_.first_row + i] * factor;
      const bool small = shift < kMostRounded && shift > -kMostRounded;
      if (kept) {
        small ? exponentiate_row<true, true>(i, keys, factor, l, correction) : exponentiate_row<true, false>(i, keys, factor, l, correction);
      } else {
        small ? exponentiate_row<false, true>(i, keys, factor, l, correction) : exponentiate_row<false, false>(i, keys, factor, l, correction);
      }
    }
  }

 private:
  static constexpr int kWidth = kLanes<float>;
  static constexpr std::int64_t kPanel = kPanelKeys<float>, kGroup = 2 * kWidth;  // kGroup: number of keys whose products, and later whose exponentials, are computed at a time

  float* largest_by_lane(int i) const { return s_.sums + (strip_.first_row + i) * kWidth; }

  template <Scores kScores>
  void find_scores(KeyRange keys) {
    KeyRange stored{0, 0};  // the range of keys whose products are complete after the next multiply_keys() or finish_keys()
    BlockKind kind_of_stored = BlockKind::full;
    for (std::int64_t panel = keys.first / kPanel * kPanel; panel < keys.last; panel += kPanel) {
      const KeyRange own{larger(panel, strip_.begin), smaller(panel + kPanel, round_up(keys.last, kGroup))};
      const BlockKind kind = kScores == Scores::plain ? BlockKind::full : strip_.blocks.at(strip_.first_key + panel);
      if (kind == BlockKind::skip) {
        for (int i = 0; i < strip_.rows; ++i) {
          for (std::int64_t s = own.first; s < own.last; s += kWidth) store_vector<float>(broadcast(-kInfinity<float>), s_.scores + i * s_.stride + s);
        }
        continue;
      }
      operands_.multiply_keys(strip_.first_row, strip_.rows, panel, own.first, own.last, s_.scores + own.first, s_.stride);
      finish_panel<kScores>(stored, kind_of_stored);
      stored = own, kind_of_stored = kind;
    }
    operands_.finish_keys();
    finish_panel<kScores>(stored, kind_of_stored);
  }

  // Applies bias and masks to the products of a panel, and updates the largest score in each vector lane.
  template <Scores kScores>
  void finish_panel(KeyRange panel, BlockKind kind) {
    if (panel.empty()) return;
    if (kScores == Scores::general || (kScores != Scores::plain && strip_.first_key + panel.last > strip_.task.keys)) return finish_panel_in_memory(panel);
    strip_.masks_to_apply = kind == BlockKind::full ? 0 : strip_.task.mask_count;
    with_count<2>(static_cast<int>((panel.last - panel.first) / kGroup), [&](auto count) {
      if (kScores == Scores::plain || (kScores == Scores::masked && kind == BlockKind::full)) {
        finish_rows<2 * count(), Scores::plain>(panel);
      } else {
        finish_rows<2 * count(), kScores>(panel);
      }
    });
  }

  template <int Columns, Scores kScores>
  POLYHEAD_INLINE void finish_rows(KeyRange panel) {
    const bool cut = panel.first < strip_.inner.first || panel.last > strip_.inner.last;
    float* scores = s_.scores + panel.first;
    for (int i = 0; i < strip_.rows; ++i, scores += s_.stride) {
      Vector<float> x[Columns];
#pragma GCC unroll 4
      for (int j = 0; j < Columns; ++j) x[j] = load_vector(scores + j * kWidth);
      if constexpr (kScores != Scores::plain) strip_.finish_row<Columns, kScores == Scores::biased>(strip_.lines[i], panel.first, x);
      if (cut) keep_between<float>(strip_.lines[i].own, panel.first, x);
      if (cut || kScores != Scores::plain) {
#pragma GCC unroll 4
        for (int j = 0; j < Columns; ++j) store_vector<float>(x[j], scores + j * kWidth);
      }
      float* const largest = largest_by_lane(i);
      store_vector<float>(larger(load_vector(largest), largest_of_vectors<float>(x)), largest);
    }
  }

  __attribute__((noinline)) void finish_panel_in_memory(KeyRange panel) {
    for (int i = 0; i < strip_.rows; ++i) {
      const std::int64_t low = larger(strip_.lines[i].own.first, panel.first), high = smaller(strip_.lines[i].own.last, panel.last);
      float* const x = s_.scores + i * s_.stride;
      if (low < high)
        finish_scores<float>(strip_.task, s_.rows[strip_.first_row + i], strip_.factor, strip_.first_key + panel.first, low - panel.first, high - panel.first, x + panel.first, nullptr, s_.bytes);
      float* const largest = largest_by_lane(i);
      for (std::int64_t s = panel.first; s < panel.last; ++s) x[s] = s >= low && s < high ? x[s] : -kInfinity<float>;
      for (std::int64_t s = panel.first; s < panel.last; s += kWidth) store_vector<float>(larger(load_vector(largest), load_vector(x + s)), largest);
    }
  }

  template <bool kKept, bool kSmall>
  POLYHEAD_INLINE void exponentiate_row(int i, KeyRange keys, float factor, float* l, float* correction) {
    float* const p = s_.scores + i * s_.stride;
    Bf16Pair* const pairs = reinterpret_cast<Bf16Pair*>(s_.bf16_pairs) + i * s_.stride / 2;
    const float reference = s_.reference[strip_.first_row + i];
    const Vector<std::int32_t> ones = broadcast(0x3f803f80);
    Vector<float> sum{}, rounded{};
    for (std::int64_t s = strip_.begin, end = round_up(keys.last, kGroup); s < end; s += kGroup) {
      Vector<float> x[2] = {load_vector(p + s), load_vector(p + s + kWidth)};
      exp_for_bf16<2, kSmall>(x, reference, factor);
      if constexpr (kKept) store_vector<float>(x[0], p + s), store_vector<float>(x[1], p + s + kWidth);
      const Vector<std::int32_t> narrow = narrow_halves(x[0], x[1]);
      store_vector<std::int32_t>(narrow, &pairs[s / 2].bits);
      sum += x[0] + x[1];
      add_product<float>(rounded, narrow, ones);
    }
    l[i] = sum_of_lanes<float>(sum);
    const float ratio = l[i] / sum_of_lanes<float>(rounded);
    correction[i] = ratio * 0.0F == 0 ? ratio : 1.0F;
  }

  ForwardStrip<float, true>& strip_;
  const Scratch<float>& s_;
  AmxOperands& operands_;
};

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
