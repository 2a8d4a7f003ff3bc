#include "distributed/shard.h"

#include <algorithm>
#include <utility>

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
  const auto within = [&](std::int64_t position) { return std::clamp<std::int64_t>(position - block.key, 0, p.keys); };
  for (const KeyRange& range : all.rules->ranges) rules.ranges.push_back({within(range.first), within(range.last)});  // of sequences
  if (pairs.ranges) {
    const std::vector<KeyRange> of_sequences = std::move(rules.ranges);
    rules.ranges.clear(), rules.range_per_query = true;
    const ConstTensorView view = pairs.ranges.view.slice(-2, block.rows.first, block.rows.last), firsts = view.select(-1, 0), lasts = view.select(-1, 1);
    for_each_offset<2>(firsts.shape(), {firsts.strides(), lasts.strides()}, [&](const auto& at) {
      KeyRange range{within(firsts.data<std::int64_t>()[at[0]]), within(lasts.data<std::int64_t>()[at[1]])};
      if (!of_sequences.empty()) {
        const KeyRange& own = of_sequences[rules.ranges.size() / static_cast<std::size_t>(p.queries)];
        range = {std::max(range.first, own.first), std::min(range.last, own.last)};
      }
      rules.ranges.push_back(range);
    });
  }
  for (const PairMask& mask : pairs.masks) rules.add({of_pairs(mask.pairs.view, mask.pairs.own_rows, run, block).expand(of_all_pairs), mask.attend});
  p.rules = &rules, p.documents = {&rules.all_pairs, 1};
}

}  // namespace polyhead::distributed
