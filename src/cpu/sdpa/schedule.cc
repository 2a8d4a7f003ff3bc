#include "cpu/sdpa/schedule.h"

#include <algorithm>
#include <span>

#include "core/parallel.h"
#include "cpu/sdpa/group.h"
#include "cpu/sdpa/task.h"

namespace polyhead::cpu {
namespace {

std::int64_t divide_up(std::int64_t x, std::int64_t y) { return (x + y - 1) / y; }

// Costs of work that is not a matrix product, in multiply-adds. docs/experiments.md says how they were measured.
constexpr double kPackElement = 26;  // cost of packing an element of k or v in the backward pass
constexpr double kLoadElement = 12;  // for each key block: cost of loading an element of q, out or d_out, or of adding to an element of d_q
constexpr double kReadElement = 12;  // cost of reading and packing an element of k or v in the forward pass
constexpr double kRowElement = 4;    // cost of loading an element of q or of storing an element of out
constexpr double kPair = 16;         // cost of exp, p and d_score for a pair (query, key)
constexpr double kRegion = 1e6;      // cost of waking the threads and of waiting until they have finished
constexpr double kLeastCost = kLeastPieceNanoseconds * kMultiplyAddsPerNanosecond;

// Some consecutive items, all of the same cost.
struct EqualItems {
  double cost;
  std::int64_t count;
};

// Cuts the items into consecutive pieces of similar cost. A piece takes items as long as they cost at most `wanted` together, but at least one. Returns the
// predicted cost of the thread that ends last.
double cut_pieces(std::span<const EqualItems> all, int threads, std::vector<std::int64_t>& pieces) {
  constexpr double kPiecesPerThread = 16;  // each thread gets many small pieces, so that all threads end at about the same time
  double total = 0;
  std::int64_t count = 0;
  for (const EqualItems& items : all) total += items.cost * static_cast<double>(items.count), count += items.count;
  pieces = {0};
  if (count == 1) {
    pieces.push_back(count);
    return total;
  }
  const double wanted = std::max(kLeastCost, total / (kPiecesPerThread * threads));
  std::vector<double> costs;
  double piece = 0;
  std::int64_t item = 0;
  for (const EqualItems& items : all) {
    const double cost = std::max(1.0, items.cost);
    for (std::int64_t left = items.count; left > 0;) {
      const auto some = std::min(left, std::max<std::int64_t>(1, static_cast<std::int64_t>((wanted - piece) / cost)));
      left -= some, item += some, piece += cost * static_cast<double>(some);
      if (piece < 0.999 * wanted && piece + cost < 1.001 * wanted) continue;
      pieces.push_back(item), costs.push_back(piece), piece = 0;
    }
  }
  if (piece > 0) pieces.push_back(item), costs.push_back(piece);
  return longest_thread(costs, threads);
}

// Returns the number of pairs (query, key) that a kernel computes for the rows [first_row, last_row) and the keys [first_key, last_key). A kernel computes whole
// strips of rows, so pairs that only some rows of a strip attend to are computed for all its rows.
double pairs_of(const AttentionSizes& sizes, std::int64_t first_row, std::int64_t last_row, std::int64_t first_key, std::int64_t last_key) {
  if (!sizes.banded) return static_cast<double>((last_row - first_row) * (last_key - first_key));
  double pairs = 0;
  for (std::int64_t row = first_row; row < last_row; row += kRowMultiple) {
    const std::int64_t t = row % sizes.queries, rows = std::min<std::int64_t>(kRowMultiple, last_row - row);
    const std::int64_t first = std::max(first_key, t + sizes.lower), last = std::min(last_key, t + rows - 1 + sizes.upper);
    pairs += static_cast<double>(rows * std::max<std::int64_t>(0, last - first));
  }
  return pairs;
}

double backward_cost(const AttentionSizes& sizes, double pairs, std::int64_t rows, std::int64_t keys) {
  const auto h = static_cast<double>(sizes.qk_width), v = static_cast<double>(sizes.v_width);
  const double loads =
      pairs / static_cast<double>(backward_block_keys(sizes.element_bytes));  // number of rows, where a row counts once for each of its key blocks
  return pairs * (3 * h + 2 * v + kPair) +
         (h + v) * (kPackElement * static_cast<double>(keys) + kLoadElement * (static_cast<double>(rows) + loads));
}

}  // namespace

AttentionSizes::AttentionSizes(const Problem& p)
    : batch(p.batch),
      kv_heads(p.kv_heads),
      group(p.heads / p.kv_heads),
      queries(p.queries),
      keys(p.keys),
      qk_width(p.qk_width),
      v_width(p.v_width),
      element_bytes(p.dtype == DType::f64 ? 8 : 4),
      // If empty_rows is not `zero`, an empty row attends to all keys, also outside of the band.
      banded(p.rules->banded && p.empty_rows == EmptyRows::zero),
      lower(p.documents.front().band.lower),
      upper(p.documents.front().band.upper) {}

// Keys: each split is a single key block if there are then at most 16 splits; the sums of d_q of a split then need no separate memory. Rows: a split has at
// most 1,056 rows (rounded up to a multiple of 64), or more if there would be more than 8 splits. With these sizes, adding the sums of the splits takes less
// than 0.5 % of the time of the products.
BackwardSplits::BackwardSplits(const AttentionSizes& sizes) {
  constexpr std::int64_t kLeastBlocks = 4, kMostRows = 1056, kRowStep = 64, kMostRowSplits = 8;
  const std::int64_t block_keys = backward_block_keys(sizes.element_bytes),
                     key_blocks = std::max<std::int64_t>(1, divide_up(sizes.keys, block_keys));
  keys_per_split = block_keys * (key_blocks <= kMost ? 1 : std::max(kLeastBlocks, divide_up(key_blocks, kMost)));
  key_splits = std::max<std::int64_t>(1, divide_up(sizes.keys, keys_per_split));
  row_splits = std::clamp<std::int64_t>(divide_up(sizes.rows(), kMostRows), 1, kMostRowSplits);
  rows_per_split = std::max<std::int64_t>(1, divide_up(divide_up(sizes.rows(), row_splits), kRowStep)) * kRowStep;
  row_splits = std::max<std::int64_t>(1, divide_up(sizes.rows(), rows_per_split));
}

std::int64_t sequences_per_group(std::int64_t batch) {
  constexpr std::int64_t kLeast = 8, kMostGroups = 16;
  return std::max(kLeast, divide_up(batch, kMostGroups));
}

BackwardSchedule::BackwardSchedule(const AttentionSizes& sizes, const Together& together, int threads)
    : splits(sizes), sequences(together.sequences ? 1 : sizes.batch), heads(together.heads ? 1 : sizes.kv_heads) {
  cut(sizes, together, threads);
  const double work = load.work;
  if (threads == 1 || load.efficiency(threads) > 0.95 || work < 4 * kRegion) return;
  BackwardSchedule best = *this;
  const std::int64_t groups = together.groups ? divide_up(sizes.batch, sequences_per_group(sizes.batch)) : 1;
  // Tries the schedules in the order of the memory that they need. A schedule that needs more memory than another is chosen only if it is 5 % faster.
  for (const bool apart : {false, true}) {
    if (apart && groups == 1) continue;
    groups_apart = apart, sequences = apart ? groups : together.sequences ? 1 : sizes.batch;
    for (const auto& [rows, keys] : {std::pair(false, false), std::pair(true, false), std::pair(false, true), std::pair(true, true)}) {
      if ((rows && (together.rows || splits.row_splits == 1)) || (keys && (together.keys || splits.key_splits == 1))) continue;
      rows_apart = rows, keys_apart = keys;
      cut(sizes, together, threads);
      load.work = work;
      if (load.longest < 0.95 * best.load.longest) best = *this;
    }
  }
  *this = std::move(best);
}

void BackwardSchedule::cut(const AttentionSizes& sizes, const Together& together, int threads) {
  const std::int64_t rows = rows_apart ? splits.row_splits : 1, keys = keys_apart ? splits.key_splits : 1;
  const std::int64_t rows_each = rows_apart ? splits.rows_per_split : sizes.rows(),
                     keys_each = keys_apart ? splits.keys_per_split : sizes.keys;
  cells.clear();
  double parts_of_rows = 0, parts_of_keys = 0;  // how many rows of partial sums are added: rows of d_q, and rows of d_k and d_v
  std::vector<bool> has_cell(static_cast<std::size_t>(keys), false);
  for (std::int64_t r = 0; r < rows; ++r) {
    bool row_has_cell = false;
    for (std::int64_t k = 0; k < keys; ++k) {
      BackwardCell cell{r * rows_each, std::min(sizes.rows(), (r + 1) * rows_each), k * keys_each,
                        std::min(sizes.keys, (k + 1) * keys_each), 0};
      const double pairs = pairs_of(sizes, cell.first_row, cell.last_row, cell.first_key, cell.last_key);
      // Every row and every key must belong to some cell, because its gradient is written by a cell.
      const bool last = (k == keys - 1 && !row_has_cell) || (r == rows - 1 && !has_cell[static_cast<std::size_t>(k)]);
      if (pairs == 0 && !last && !together.every_pair) continue;
      row_has_cell = has_cell[static_cast<std::size_t>(k)] = true;
      cell.cost = backward_cost(sizes, pairs, cell.last_row - cell.first_row, cell.last_key - cell.first_key);
      cells.push_back(cell);
      parts_of_rows += static_cast<double>(cell.last_row - cell.first_row);
      parts_of_keys += static_cast<double>(cell.last_key - cell.first_key);
    }
  }
  std::stable_sort(cells.begin(), cells.end(), [](const BackwardCell& a, const BackwardCell& b) { return a.cost > b.cost; });
  double total = 0;
  for (const BackwardCell& cell : cells) total += cell.cost;
  const auto all = static_cast<double>(sizes.batch * sizes.kv_heads), separate = static_cast<double>(sequences * heads);
  load.work = total * all;
  if (threads == 1 || load.work < 2 * kLeastCost) {
    pieces.assign({0, static_cast<std::int64_t>(cells.size()) * sequences * heads});
    load.longest = load.work;
    return;
  }
  std::vector<EqualItems> items;
  for (const BackwardCell& cell : cells) items.push_back({cell.cost * all / separate, sequences * heads});
  load.longest = cut_pieces(items, threads, pieces);
  if (pieces.size() > 2) load.longest += kRegion;
  double merged = 0;
  if (keys_apart) merged += parts_of_rows * static_cast<double>(sizes.qk_width) * all;
  if (rows_apart) merged += parts_of_keys * static_cast<double>(sizes.qk_width + sizes.v_width) * all;
  if (groups_apart) merged += separate * static_cast<double>(sizes.group * sizes.queries * sizes.keys);
  if (merged > 0) load.longest += kMergeElement * merged / threads + kRegion;
}

namespace {

// Returns the cost of a block of rows: the cost of the pairs that its strips compute, of packing the keys that any of its strips attends to, and of loading its
// rows.
double forward_cost(const AttentionSizes& sizes, double pairs, std::int64_t keys, std::int64_t rows) {
  const auto width = static_cast<double>(sizes.qk_width + sizes.v_width);
  return pairs * (width + kPair) +
         width * (kReadElement * static_cast<double>(std::max<std::int64_t>(0, keys)) + kRowElement * static_cast<double>(rows));
}

double forward_cost(const AttentionSizes& sizes, std::int64_t first_row, std::int64_t last_row, std::int64_t first_key,
                    std::int64_t last_key) {
  const double pairs = pairs_of(sizes, first_row, last_row, first_key, last_key);
  if (sizes.banded) {
    const bool one_head = last_row - first_row <= sizes.queries;
    const std::int64_t t = one_head ? first_row % sizes.queries : 0, last = one_head ? (last_row - 1) % sizes.queries : sizes.queries - 1;
    first_key = std::max(first_key, t + sizes.lower), last_key = std::min(last_key, last + sizes.upper);
  }
  return forward_cost(sizes, pairs, last_key - first_key, last_row - first_row);
}

// Cuts the queries of a head into blocks of similar cost. A block has at most `most` queries (or one strip). There are at most `count` blocks, unless blocks of
// `most` queries would be more. Returns the ends of the blocks.
std::vector<std::int64_t> equal_blocks(const AttentionSizes& sizes, std::int64_t count, std::int64_t most) {
  std::vector<double> before{0};  // before[i]: number of pairs of the strips before strip i
  for (std::int64_t t = 0; t < sizes.queries; t += kRowMultiple)
    before.push_back(before.back() + pairs_of(sizes, t, std::min(sizes.queries, t + kRowMultiple), 0, sizes.keys));
  const auto strips = static_cast<std::int64_t>(before.size()) - 1, most_strips = std::max<std::int64_t>(1, most / kRowMultiple);
  const auto cost = [&](std::int64_t first, std::int64_t last) {
    const std::int64_t t = first * kRowMultiple, end = std::min(sizes.queries, last * kRowMultiple);
    const double pairs = before[static_cast<std::size_t>(last)] - before[static_cast<std::size_t>(first)];
    return forward_cost(sizes, pairs, std::min(sizes.keys, end - 1 + sizes.upper) - std::max<std::int64_t>(0, t + sizes.lower), end - t);
  };
  std::vector<std::int64_t> ends;
  double low = 0, high = cost(0, strips);
  for (int step = 0; step < 10; ++step) {  // bisection for the smallest cost of a block that gives at most `count` blocks
    const double limit = step == 9 ? high : (low + high) / 2;
    ends.clear();
    for (std::int64_t first = 0, last = 1; first < strips; first = last, ++last) {
      while (last < strips && last - first < most_strips && cost(first, last + 1) <= limit) ++last;
      ends.push_back(std::min(sizes.queries, last * kRowMultiple));
    }
    (static_cast<std::int64_t>(ends.size()) <= count ? high : low) = limit;
  }
  return ends;
}

}  // namespace

ForwardSchedule::ForwardSchedule(const AttentionSizes& sizes, const BlockSizes& block_sizes, std::int64_t block_keys, bool keys_apart,
                                 int threads)
    : heads(sizes.batch * sizes.kv_heads), last_key(sizes.keys), keys_per_split(sizes.keys), key_blocks(divide_up(sizes.keys, block_keys)) {
  const std::int64_t most = block_sizes.query_rows(std::max(sizes.qk_width, sizes.v_width), sizes.element_bytes);
  const std::int64_t per_head = divide_up(sizes.queries, most);
  // A block has several whole heads, so that these heads share packed keys and values.
  if (sizes.queries * 2 <= most) {
    const std::int64_t rows = std::min(sizes.group, most / sizes.queries) * sizes.queries;
    for (std::int64_t row = 0; row < sizes.rows(); row += rows) add_block(sizes, row, std::min(sizes.rows(), row + rows));
  } else {
    cut_heads(sizes, per_head, most, false);
  }
  share(sizes, threads);
  const double work = load.work;
  if (threads == 1 || work < 4 * kRegion || load.efficiency(threads) > 0.95) return;
  ForwardSchedule best = *this;
  const auto keep_better = [&] {
    load.work = work;
    if (load.longest < 0.97 * best.load.longest) best = *this;
  };
  // Tries schedules in this order: as many blocks of rows as there are threads, then a few times as many, and then splits of keys. The search ends at the first
  // schedule that is good enough, because searching takes time.
  constexpr double kGood = 0.9;
  constexpr std::int64_t kLeastRows = 2 * kRowMultiple;
  for (const std::int64_t times : {1, 2, 3, 4}) {
    if (best.load.efficiency(threads) > kGood) break;
    const std::int64_t wanted = std::min(divide_up(times * threads, heads * sizes.group), sizes.queries / kLeastRows);
    if (wanted <= per_head) continue;
    cut_heads(sizes, wanted, most, sizes.banded);
    share(sizes, threads);
    keep_better();
  }
  if (keys_apart && best.load.efficiency(threads) < kGood) {
    *this = best;
    std::int64_t first = 0, last = sizes.keys;
    if (sizes.banded) first = std::max<std::int64_t>(0, sizes.lower), last = std::min(sizes.keys, sizes.queries - 1 + sizes.upper);
    const std::int64_t first_block = first / block_keys, block_count = count();
    key_blocks = divide_up(last, block_keys) - first_block;
    first_key = first_block * block_keys, last_key = last;
    for (const std::int64_t times : {1, 2, 4}) {
      const std::int64_t wanted = std::min(key_blocks, divide_up(times * threads, block_count));
      if (wanted <= key_splits) continue;
      keys_per_split = divide_up(key_blocks, wanted) * block_keys;
      key_splits = divide_up(key_blocks * block_keys, keys_per_split);
      share(sizes, threads);
      keep_better();
    }
  }
  *this = std::move(best);
}

void ForwardSchedule::add_block(const AttentionSizes& sizes, std::int64_t first, std::int64_t last) {
  blocks.push_back({first, last, forward_cost(sizes, first, last, 0, sizes.keys)});
  most_rows = std::max(most_rows, last - first);
}

// Cuts each head into `per_head` blocks: of equal size, or of similar cost if by_cost.
void ForwardSchedule::cut_heads(const AttentionSizes& sizes, std::int64_t per_head, std::int64_t most, bool by_cost) {
  blocks.clear();
  most_rows = 0;
  std::vector<std::int64_t> ends;
  if (by_cost) {
    ends = equal_blocks(sizes, per_head, most);
  } else {
    const std::int64_t rows = divide_up(divide_up(sizes.queries, per_head), kRowMultiple) * kRowMultiple;
    for (std::int64_t t = rows; t < sizes.queries; t += rows) ends.push_back(t);
    ends.push_back(sizes.queries);
  }
  for (std::int64_t head = 0; head < sizes.group; ++head) {
    std::int64_t first = 0;
    for (const std::int64_t end : ends) add_block(sizes, head * sizes.queries + first, head * sizes.queries + end), first = end;
  }
}

// Distributes the items over the threads, as pieces of similar cost.
void ForwardSchedule::share(const AttentionSizes& sizes, int threads) {
  heaviest_first = sizes.banded && threads > 1 && blocks.size() > 1;
  if (heaviest_first)
    std::stable_sort(blocks.begin(), blocks.end(), [](const ForwardBlock& a, const ForwardBlock& b) { return a.cost > b.cost; });
  load.work = 0;
  for (const ForwardBlock& block : blocks) load.work += block.cost * static_cast<double>(heads);
  // Small calls get no lists of pieces, because making a list would take longer than the call.
  if (threads == 1 || load.work < 2 * kLeastCost) {
    pieces.assign({0, count() * key_splits});
    load.longest = load.work;
    return;
  }
  std::vector<EqualItems> items;
  double merged = 0;
  for (const ForwardBlock& block : blocks) {
    double cost = block.cost;
    if (key_splits > 1) {
      cost = 0;
      for (std::int64_t first = first_key; first < last_key; first += keys_per_split)
        cost += forward_cost(sizes, block.first, block.last, first, std::min(last_key, first + keys_per_split));
      merged = std::max(merged, kMergeElement * static_cast<double>((block.last - block.first) * key_blocks * (sizes.v_width + 16)));
    }
    items.push_back({cost / static_cast<double>(key_splits), heads * key_splits});
  }
  load.longest = cut_pieces(items, threads, pieces);
  if (pieces.size() > 2) load.longest += kRegion;
  // The cost of merging key splits: the threads share the blocks, so one thread merges the splits of at most count() / threads blocks, rounded up.
  if (key_splits > 1) load.longest += merged * static_cast<double>(divide_up(count(), threads));
}

ForwardCursor::ForwardCursor(const ForwardSchedule& schedule, std::int64_t kv_heads, std::int64_t item)
    : split(item % schedule.key_splits),
      position(item / schedule.key_splits),
      blocks_(static_cast<std::int64_t>(schedule.blocks.size())),
      splits_(schedule.key_splits),
      kv_heads_(kv_heads),
      sequences_(schedule.heads / kv_heads),
      heads_first_(schedule.heaviest_first) {
  const std::int64_t head = heads_first_ ? position % schedule.heads : position / blocks_;
  block = heads_first_ ? position / schedule.heads : position % blocks_;
  sequence = head / kv_heads, kv_head = head % kv_heads;
}

bool ForwardCursor::next() {
  if (++split < splits_) return false;
  split = 0, ++position;
  if (heads_first_) {
    next_head();
    if (sequence == 0 && kv_head == 0) ++block;
    return true;
  }
  if (++block < blocks_) return false;
  block = 0;
  next_head();
  return true;
}

void ForwardCursor::next_head() {
  if (++kv_head < kv_heads_) return;
  kv_head = 0;
  if (++sequence == sequences_) sequence = 0;
}

}  // namespace polyhead::cpu
