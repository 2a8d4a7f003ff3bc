// A part of a case as a case of its own, which must have the bits that the part has in the whole.
#pragma once

#include <algorithm>
#include <optional>

#include "polyhead/maps.h"
#include "support/compare_outputs.h"

namespace polyhead::test {

// Queries [t, t_end) and keys [s, s_end): of all sequences, or of one of a case with one leading dimension.
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

  // 0: the view has no such axis.
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

// Everything that broadcasts is written out and cut. Offsets of documents and of diagonals stay: they are the caller's to replace.
inline AttentionCase alone(const AttentionCase& c, const CasePart& part) {
  AttentionCase d;
  d.sizes = c.sizes, d.dtype = c.dtype, d.options = c.options;
  if (part.sequence) d.sizes.lead[0] = 1;
  d.sizes.queries = part.t_end - part.t, d.sizes.keys = part.s_end - part.s;
  d.q = part.of_rows(c.q), d.d_out = part.of_rows(c.d_out), d.k = part.of_keys(c.k), d.v = part.of_keys(c.v);
  const Shape pairs = c.sizes.pairs();
  Mask& mask = d.options.mask;
  for (ConstTensorView* dense : {&mask.attend, &mask.block, &d.options.bias}) {
    if (*dense) *dense = part.of_pairs(dense->expand(pairs));
  }
  for (ConstTensorView* keys : {&mask.attend_keys, &mask.block_keys}) {
    if (*keys) *keys = part.cut(keys->expand(c.sizes.keys_of()), 0, -1);
  }
  if (mask.key_lengths) {
    const bool per_query = mask.key_lengths.rank() > c.sizes.lead.size();
    Tensor lengths = Tensor::copy_of(part.cut(mask.key_lengths, per_query ? -1 : 0, 0), DType::i64);
    for (std::int64_t i = 0; i < lengths.numel(); ++i) {
      lengths.data<std::int64_t>()[i] = std::clamp<std::int64_t>(lengths.data<std::int64_t>()[i] - part.s, 0, d.sizes.keys);
    }
    mask.key_lengths = d.keep(std::move(lengths));
  }
  if (d.options.sink) d.options.sink = part.of_lse(sink_rows(d.options.sink).expand(c.sizes.lse()));
  if (Dropout& dropout = d.options.dropout; dropout.p > 0 || dropout.keep) {
    Tensor bits(DType::boolean, pairs);
    dropout.keep ? copy(dropout.keep.expand(pairs), bits) : dropout_keep_bits(dropout.p, dropout.seed.value(), bits);
    dropout.keep = part.of_pairs(ConstTensorView(d.keep(std::move(bits))));
  }
  return d;
}

// Of d_bias and d_sink where each element belongs to one part: else parts add into the same elements.
inline AttentionOutputs part_of(const AttentionCase& c, const AttentionOutputs& o, const CasePart& part) {
  AttentionOutputs own{.out = part.of_rows(o.out), .lse = part.of_lse(o.lse), .d_q = part.of_rows(o.d_q), .d_k = part.of_keys(o.d_k), .d_v = part.of_keys(o.d_v)};
  own.attention_weights = part.of_pairs(o.attention_weights);
  if (o.d_bias && !c.table && o.d_bias.shape() == c.sizes.pairs()) own.d_bias = part.of_pairs(o.d_bias);
  if (o.d_sink && o.d_sink.shape() == c.sizes.lse()) own.d_sink = part.of_lse(o.d_sink);
  return own;
}

// `d` is the part as a case of its own; its outputs have the bits of the part in `whole`.
inline void expect_same_bits_alone(const AttentionCase& c, const AttentionOutputs& whole, const CasePart& part, AttentionCase& d) {
  const AttentionOutputs own = part_of(c, whole, part);
  AttentionOutputs o = d.make_outputs();
  if (own.attention_weights) o.attention_weights = d.keep(Tensor(d.dtype, d.sizes.pairs()));
  if (!own.d_bias) o.d_bias = {};
  if (!own.d_sink) o.d_sink = {};
  o.d_relative_bias = {};  // parts share its elements
  d.run(o);
  expect_same_bits(o, own);
}

inline void expect_same_maps_alone(const AttentionCase& c, const CasePart& part, const AttentionCase& d) {
  for (const MapValue value : {MapValue::capped_score, MapValue::score, MapValue::probability, MapValue::dropped}) {
    Tensor whole(DType::f64, c.sizes.pairs()), alone(DType::f64, d.sizes.pairs());
    attention_map(c.maps(), whole, c.options, value);
    attention_map(d.maps(), alone, d.options, value);
    EXPECT_TRUE(same_bits(alone, part.of_pairs(whole.view()))) << "map " << static_cast<int>(value);
  }
}

}  // namespace polyhead::test
