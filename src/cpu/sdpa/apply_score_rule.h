// Calls the caller's score rule (polyhead/score_rule.h) with the rows of a strip. Only kernel sources (*_kernel.cc) include this file.
#pragma once

#include "cpu/sdpa/rows.h"

#include "cpu/sdpa/pack.h"
#include "cpu/sdpa/strip_blocks.h"
#include "polyhead/score_rule.h"

namespace polyhead::cpu::POLYHEAD_ISA {
namespace {

// Divides the rows of a strip into runs of consecutive queries of one head. Calls f(tile, i) for each run, which begins at row i. The tile holds the run's
// scores for the keys in `keys` that exist; `keys` is relative to key `first`.
template <class T, class F>
void for_each_score_tile(const HeadGroup& group, const Row* rows, int count, std::int64_t first, KeyRange keys, std::int64_t stride, T* x, const F& f) {
  const std::int64_t last = smaller(keys.last, group.keys - first);
  for (int i = 0, end = 0; i < count && keys.first < last; i = end) {
    for (end = i + 1; end < count && rows[end].head == rows[i].head && rows[end].query == rows[end - 1].query + 1;) ++end;
    ScoreTile tile;
    tile.scores = x + i * stride + keys.first, tile.float64 = sizeof(T) == 8;
    tile.rows = end - i, tile.keys = last - keys.first, tile.row_stride = stride;
    tile.first_query = group.rule_query + rows[i].query, tile.first_key = group.rule_key + first + keys.first;
    tile.batch = group.rule_batch, tile.head = group.rule_head + rows[i].head;
    f(tile, i);
  }
}

// Divides `keys` into the ranges that remain without the panels that the mask skips, and calls f(range) for each. A range consists of whole vectors. `keys` and
// `range` are relative to key `first`.
template <class T, class F>
void for_each_kept_range(std::int64_t first, KeyRange keys, const StripBlocks& blocks, const F& f) {
  KeyRange range{0, 0};
  for_each_panel<T>(keys.first, keys.last, [&](std::int64_t panel, std::int64_t begin, int vectors) {
    if (blocks.at(first + panel) == BlockKind::skip) return;
    if (range.last != begin || range.empty()) {
      if (!range.empty()) f(range);
      range.first = begin;
    }
    range.last = begin + vectors * kLanes<T>;
  });
  if (!range.empty()) f(range);
}

// Calls the rule for the products x of the rows with keys. First multiplies x by `factor`, which gives the scaled scores, and copies these to `before` unless
// `before` is nullptr. The rule then replaces x by the new scores.
template <class T>
void apply_score_rule(const HeadGroup& group, T factor, const Row* rows, int count, std::int64_t first, KeyRange keys, const StripBlocks& blocks,
                      std::int64_t stride, T* x, T* before) {
  for_each_kept_range<T>(first, keys, blocks, [&](KeyRange range) {
    for (int i = 0; i < count && (factor != T{1} || before != nullptr); ++i) {  // the factor is 1 if the scale is a power of two, as for H = 64
      T* const row = x + i * stride;
      for (std::int64_t s = range.first; s < range.last; s += kLanes<T>) {
        const Vector<T> scaled = load_vector(row + s) * factor;
        store_vector<T>(scaled, row + s);
        if (before != nullptr) store_vector<T>(scaled, before + i * stride + s);
      }
    }
    for_each_score_tile(group, rows, count, first, range, stride, x, [&](const ScoreTile& tile, int /*row*/) { group.rule->forward(tile, group.rule->data); });
  });
}

// Replaces d_x, the gradients of the new scores, by the gradients of the scaled scores, which `before` holds. A d_x of 0 stays 0 whatever the rule computes:
// masked pairs have d_x = 0, and their scores may be NaN. A rule with keeps_zeros keeps these zeros itself. Overwrites `before`; `copy` is scratch of the same
// size.
template <class T>
void differentiate_score_rule(const HeadGroup& group, double* sums, const Row* rows, int count, std::int64_t first, KeyRange keys, const StripBlocks& blocks,
                              std::int64_t stride, T* d_x, T* before, T* copy) {
  const ScoreRule& rule = *group.rule;
  for_each_kept_range<T>(first, keys, blocks, [&](KeyRange range) {
    for (int i = 0; i < count && !rule.keeps_zeros; ++i) {
      for (std::int64_t s = i * stride + range.first; s < i * stride + range.last; s += kLanes<T>) {
        const Vector<T> d = load_vector(d_x + s);
        store_vector<T>(d, copy + s);
        // If a rule does not read `before`, `before` was never written.
        if (rule.reads_before) store_vector<T>(d == T{0} ? Vector<T>{} : load_vector(before + s), before + s);
      }
    }
    // In the vectors that contain the first and the last key of `keys`, d_x is undefined at keys outside of `keys`. The tile leaves these keys out.
    const KeyRange defined{larger(range.first, keys.first), smaller(range.last, keys.last)};
    for_each_score_tile(group, rows, count, first, defined, stride, d_x, [&](const ScoreTile& tile, int row) {
      double* const of_head = sums == nullptr ? nullptr : sums + rows[row].head * rule.gradient_count;
      rule.backward(tile, rule.reads_before ? before + row * stride + defined.first : nullptr, of_head, rule.data);
    });
    for (int i = 0; i < count && !rule.keeps_zeros; ++i) {
      for (std::int64_t s = i * stride + range.first; s < i * stride + range.last; s += kLanes<T>)
        store_vector<T>(load_vector(copy + s) == T{0} ? Vector<T>{} : load_vector(d_x + s), d_x + s);
    }
  });
}

}  // namespace
}  // namespace polyhead::cpu::POLYHEAD_ISA
