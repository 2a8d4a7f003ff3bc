#include "distributed/shard.h"

#include <algorithm>

#include "core/index.h"

namespace polyhead::distributed {

std::vector<HeadRun> Shard::runs() const {
  if (heads.empty()) return {};
  const std::int64_t group = problem().heads / problem().kv_heads;
  const std::int64_t first = (heads.first + group - 1) / group, last = heads.last / group;  // range of key/value heads whose query heads are all in the shard
  std::vector<HeadRun> runs;
  if (first > last) return {{heads, {last, last + 1}}};  // the shard has only some query heads of one key/value head
  if (heads.first < first * group) runs.push_back({{heads.first, first * group}, {first - 1, first}});
  if (first < last) runs.push_back({{first * group, last * group}, {first, last}});
  if (last * group < heads.last) runs.push_back({{last * group, heads.last}, {last, last + 1}});
  return runs;
}

void Shard::set_problem(const HeadRun& run, const Block& block, Problem& p, KeyRules& rules, Tensor& bias) const {
  const Problem& all = problem();
  p.dtype = dtype();
  p.key_dtype = widened ? p.dtype : all.key_dtype;
  p.lead = all.lead, p.batch = all.batch;
  p.heads = run.heads.last - run.heads.first, p.kv_heads = run.kv_heads.last - run.kv_heads.first;
  p.queries = block.rows.last - block.rows.first, p.keys = block.keys.last - block.keys.first;
  p.qk_width = all.qk_width, p.v_width = all.v_width, p.scale = all.scale, p.softcap = all.softcap;
  p.native = !widened && all.native;
  p.empty_rows = all.empty_rows, p.executor = executor, p.workspace = workspace;

  const Shape of_all_pairs = appended(all.lead, {p.heads, p.queries, p.keys});
  if (pairs.bias) {
    ConstTensorView view = of_pairs(pairs.bias.view, pairs.bias.own_rows, run, block);
    if (view.dtype() != p.dtype) bias = Tensor::copy_of(view, p.dtype), view = bias;
    p.bias = view.expand(of_all_pairs);
  }
  if (all.relative_bias) p.relative_bias = all.relative_bias.slice(0, run.heads.first, run.heads.last);
  if (pairs.sink && all_keys) p.sink = rows_of_pairs(pairs.sink.view, pairs.sink.own_rows, run, block).expand(appended(all.lead, {p.heads, p.queries, 1}));
  p.dropout = {all.dropout.p, all.dropout.seed, {}, {.b = 0, .n = run.heads.first, .t = block.query, .s = block.key}};
  if (pairs.keep) p.dropout.keep = of_pairs(pairs.keep.view, pairs.keep.own_rows, run, block).expand(of_all_pairs);

  rules = {};
  rules.queries = p.queries;
  rules.all_pairs = {.queries = {0, p.queries}, .keys = {0, p.keys}, .band = band_of_block(block.document->band, block)};
  rules.banded = all.rules->banded;
  for (const Band& band : all.rules->bands) rules.bands.push_back(band_of_block(band, block));
  const auto within = [&](std::int64_t length) { return std::clamp<std::int64_t>(length - block.key, 0, p.keys); };
  if (pairs.lengths) {
    const ConstTensorView view = pairs.lengths.view.slice(-2, block.rows.first, block.rows.last);
    for_each_offset<1>(view.shape(), {view.strides()}, [&](const auto& at) { rules.lengths.push_back(within(view.data<std::int64_t>()[at[0]])); });
    rules.length_per_query = true;
  } else {
    for (const std::int64_t length : all.rules->lengths) rules.lengths.push_back(within(length));
  }
  for (const PairMask& mask : pairs.masks) rules.add({of_pairs(mask.pairs.view, mask.pairs.own_rows, run, block).expand(of_all_pairs), mask.attend});
  p.rules = &rules, p.documents = {&rules.all_pairs, 1};
}

}  // namespace polyhead::distributed
