// Cuts a part (some queries and keys) out of a case. Tests compute the part alone, which must give the same bits as in the whole case.
#pragma once

#include <algorithm>
#include <optional>

#include "polyhead/maps.h"
#include "support/compare_outputs.h"

namespace polyhead::test {

// A part of a case: the queries [t, t_end) and keys [s, s_end) of all sequences or, if the case has one leading dimension, of one sequence.
struct CasePart {
  std::int64_t t, t_end, s, s_end;
  std::optional<std::int64_t> sequence = {};

  template <class View>
  View of_rows(const View& view) const { return cut(view, -2, 0); }  // [*,N,T,·]
  template <class View>
  View of_lse(const View& view) const { return cut(view, -1, 0); }  // [*,N,T]
  template <class View>
  View of_keys(const View& view) const { return cut(view, 0, -2); }  // [*,K,S,·]
  template <class View>
  View of_pairs(const View& view) const { return cut(view, -2, -1); }  // [*,N,T,S]

  // Cuts `view` along its axis of queries and its axis of keys. An axis of 0 means that the view has no such axis.
  template <class View>
  View cut(View view, int query_axis, int key_axis) const {
    if (!view) return view;
    if (sequence) view = view.slice(0, *sequence, *sequence + 1);
    if (query_axis != 0) view = view.slice(query_axis, t, t_end);
    if (key_axis != 0) view = view.slice(key_axis, s, s_end);
    return view;
  }
};

inline CasePart sequence_of(const AttentionCase& c, std::int64_t b) { return {0, c.sizes.queries, 0, c.sizes.keys, b}; }

// Returns the part as a separate case: every tensor that broadcasts is expanded and then cut. Offsets of documents and of diagonals are copied unchanged; the
// caller must replace them.
AttentionCase alone(const AttentionCase& c, const CasePart& part);

// Returns the outputs of a part. d_bias and d_sink are included only if each of their elements belongs to a single part.
AttentionOutputs part_of(const AttentionCase& c, const AttentionOutputs& o, const CasePart& part);

// Runs `d`, which is the part as a separate case, and checks that its outputs have the same bits as the part's outputs in `whole`, the outputs of `c`.
void expect_same_bits_alone(const AttentionCase& c, const AttentionOutputs& whole, const CasePart& part, AttentionCase& d);

void expect_same_maps_alone(const AttentionCase& c, const CasePart& part, const AttentionCase& d);

}  // namespace polyhead::test
