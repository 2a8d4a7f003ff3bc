#include "support/case_part.h"

namespace polyhead::test {

AttentionCase alone(const AttentionCase& c, const CasePart& part) {
  AttentionCase d;
  d.sizes = c.sizes, d.dtype = c.dtype, d.options = c.options;
  if (part.sequence) d.sizes.lead[0] = 1;
  d.sizes.queries = part.t_end - part.t, d.sizes.keys = part.s_end - part.s;
  d.q = part.of_rows(c.q), d.d_out = part.of_rows(c.d_out), d.k = part.of_keys(c.k), d.v = part.of_keys(c.v);
  const Shape pairs = c.sizes.pairs();
  Mask& mask = d.options.mask;
  if (BlockLists& blocks = mask.blocks; blocks.lists && part.t == 0 && part.s == 0 && d.sizes.queries == c.sizes.queries && d.sizes.keys == c.sizes.keys) {
    blocks.lists = part.cut(blocks.lists.expand(c.sizes.with({c.sizes.heads(), blocks.lists.extent(-2), blocks.lists.extent(-1)})), 0, 0);
  } else if (blocks.lists) {  // the part may begin inside a block, so convert the lists to a boolean mask of pairs
    const Tensor listed = listed_pairs(blocks, pairs);
    Tensor attend = Tensor::copy_of(listed);
    for (const auto& [given, kept] : {std::pair(mask.attend, true), {mask.block, false}}) {
      if (!given) continue;
      const std::vector<double> values = to_doubles(given.expand(pairs));
      for (std::size_t i = 0; i < values.size(); ++i) attend.data<bool>()[i] = attend.data<bool>()[i] && (values[i] != 0) == kept;
    }
    mask.attend = d.keep(std::move(attend)), mask.block = {}, blocks = {};
  }
  for (ConstTensorView* dense : {&mask.attend, &mask.block, &d.options.bias}) {
    if (*dense) *dense = part.of_pairs(dense->expand(pairs));
  }
  for (ConstTensorView* keys : {&mask.attend_keys, &mask.block_keys}) {
    if (*keys) *keys = part.cut(keys->expand(c.sizes.keys_of()), 0, -1);
  }
  for (ConstTensorView* bounds : {&mask.key_starts, &mask.key_lengths}) {
    if (!*bounds) continue;
    const bool per_query = bounds->rank() > c.sizes.lead.size();
    Tensor own = Tensor::copy_of(part.cut(*bounds, per_query ? -1 : 0, 0), DType::i64);
    for (std::int64_t i = 0; i < own.numel(); ++i) {
      own.data<std::int64_t>()[i] = std::clamp<std::int64_t>(own.data<std::int64_t>()[i] - part.s, 0, d.sizes.keys);
    }
    *bounds = d.keep(std::move(own));
  }
  if (d.options.sink) d.options.sink = part.of_lse(sink_rows(d.options.sink).expand(c.sizes.lse()));
  if (Dropout& dropout = d.options.dropout; dropout.p > 0) {
    Tensor bits(DType::boolean, pairs);
    dropout.keep ? copy(dropout.keep.expand(pairs), bits) : dropout_keep_bits(dropout.p, dropout.seed.value(), bits);
    dropout.keep = part.of_pairs(ConstTensorView(d.keep(std::move(bits))));
  }
  return d;
}

AttentionOutputs part_of(const AttentionCase& c, const AttentionOutputs& o, const CasePart& part) {
  AttentionOutputs own{.out = part.of_rows(o.out), .lse = part.of_lse(o.lse), .d_q = part.of_rows(o.d_q), .d_k = part.of_keys(o.d_k), .d_v = part.of_keys(o.d_v)};
  own.attention_weights = part.of_pairs(o.attention_weights);
  if (o.d_bias && !c.table && o.d_bias.shape() == c.sizes.pairs()) own.d_bias = part.of_pairs(o.d_bias);
  if (o.d_sink && o.d_sink.shape() == c.sizes.lse()) own.d_sink = part.of_lse(o.d_sink);
  return own;
}

void expect_same_bits_alone(const AttentionCase& c, const AttentionOutputs& whole, const CasePart& part, AttentionCase& d) {
  const AttentionOutputs own = part_of(c, whole, part);
  AttentionOutputs o = d.make_outputs();
  if (own.attention_weights) o.attention_weights = d.keep(Tensor(d.dtype, d.sizes.pairs()));
  if (!own.d_bias) o.d_bias = {};
  if (!own.d_sink) o.d_sink = {};
  o.d_relative_bias = {};  // several parts add to the elements of d_relative_bias, so a part cannot be compared
  d.run(o);
  expect_same_bits(o, own);
}

void expect_same_maps_alone(const AttentionCase& c, const CasePart& part, const AttentionCase& d) {
  for (const MapValue value : {MapValue::capped_score, MapValue::score, MapValue::probability, MapValue::dropped}) {
    Tensor whole(DType::f64, c.sizes.pairs()), alone(DType::f64, d.sizes.pairs());
    attention_map(c.maps(), whole, c.options, value);
    attention_map(d.maps(), alone, d.options, value);
    EXPECT_TRUE(same_bits(alone, part.of_pairs(whole.view()))) << "map " << static_cast<int>(value);
  }
}

}  // namespace polyhead::test
