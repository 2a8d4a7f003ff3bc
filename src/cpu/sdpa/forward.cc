#include <algorithm>
#include <atomic>
#include <optional>
#include <vector>

#include "core/parallel.h"
#include "core/text.h"
#include "cpu/block_sizes.h"
#include "cpu/scratch_memory.h"
#include "cpu/sdpa/group.h"
#include "cpu/sdpa/sdpa.h"
#include "cpu/select.h"

namespace polyhead::cpu {
namespace {

constexpr std::int64_t kWantedTasks = 8;

// Cuts the rows of a key/value head into blocks of one task each. Each task packs the keys and values that its rows attend to, which takes
// 3 % of its time. A row's bits do not depend on its block.
struct RowBlocks {
  std::int64_t rows;       // of a block: part of one head, or whole heads
  std::int64_t per_group;  // blocks of a key/value head

  // Chooses blocks so small that all sequences together have at least `tasks` of them, if there are enough rows.
  RowBlocks(const Problem& p, std::int64_t batch, std::int64_t tasks, const BlockSizes& sizes) {
    const std::int64_t group = p.heads / p.kv_heads;
    std::int64_t most = sizes.query_rows(std::max(p.qk_width, p.v_width), p.dtype == DType::f64 ? 8 : 4);
    while (most > 96 && batch * p.heads * p.queries < tasks * most) most /= 2;
    if (p.queries * 2 <= most) {  // whole heads, so that the heads of a group share packed keys and values
      const std::int64_t heads = std::min(group, most / p.queries);
      rows = heads * p.queries;
      per_group = (group + heads - 1) / heads;
      whole_heads_ = true;
    } else {
      const std::int64_t blocks = (p.queries + most - 1) / most, share = (p.queries + blocks - 1) / blocks;
      rows = std::min(p.queries, (share + kStripRows - 1) / kStripRows * kStripRows);
      per_head_ = (p.queries + rows - 1) / rows;
      per_group = group * per_head_;
    }
  }

  // Sets the rows of a task: block i of its group.
  void place(std::int64_t i, ForwardTask& task) const {
    if (whole_heads_) {
      task.first_row = i * rows;
      task.rows = std::min(rows, task.heads * task.queries - task.first_row);
    } else {
      const std::int64_t t = i % per_head_ * rows;
      task.first_row = i / per_head_ * task.queries + t;
      task.rows = std::min(rows, task.queries - t);
    }
  }

 private:
  std::int64_t per_head_ = 1;
  bool whole_heads_ = false;
};

// Cuts the key blocks into splits of one task each if there are few blocks of rows, so that one head has work for every thread. The splits
// do not affect bits: each row's key blocks are joined in their order, whoever computed them.
class KeySplits {
 public:
  std::int64_t count = 1;   // splits of a block of rows
  std::int64_t blocks = 0;  // key blocks of all splits together

  KeySplits(const ForwardProblem& p, const RowBlocks& rows, std::int64_t row_blocks)
      : keys_(p.keys), block_(forward_key_block(p.qk_width, p.v_width, p.dtype == DType::f64 ? 8 : 4)) {
    KeyRange range{0, p.keys};
    if (p.rules->banded && p.empty_rows == EmptyRows::zero) {  // other modes give an empty row all keys
      const Band& band = p.documents.front().band;
      range = {std::max<std::int64_t>(0, band.lower), std::min(p.keys, p.queries - 1 + band.upper)};
    }
    // A task writes whole rows of attention weights.
    if (range.empty() || threads_of(p.executor) == 1 || row_blocks >= kWantedTasks || p.attention_weights) return;
    // Work in multiplications: reading and transposing an element of k or v takes as long as 22. Each split has at least 5e6, which take
    // 100 us, twice the time to wake a thread.
    const double work = static_cast<double>(range.last - range.first) * static_cast<double>((p.qk_width + p.v_width) * (rows.rows + 22));
    const auto wanted = static_cast<std::int64_t>(std::clamp(work / 5e6, 1.0, static_cast<double>(kWantedTasks / row_blocks)));
    const std::int64_t first = range.first / block_, last = (range.last + block_ - 1) / block_,
                       per_split = (last - first + wanted - 1) / wanted;
    count = (last - first + per_split - 1) / per_split;
    if (count == 1) return;
    first_ = first * block_, size_ = per_split * block_, blocks = last - first, keys_ = std::min(p.keys, last * block_);
  }

  // Sets the keys of a task, and where it stores the results of its key blocks; partials: those of all splits.
  void place(std::int64_t split, std::int64_t row_bytes, char* partials, ForwardTask& task) const {
    task.first_key = first_ + split * size_, task.last_key = std::min(keys_, task.first_key + size_);
    task.partial = partials + split * size_ / block_ * task.rows * row_bytes;
  }
  // Sets all keys.
  void place_all(ForwardTask& task) const { task.first_key = 0, task.last_key = keys_, task.partial = nullptr; }

 private:
  std::int64_t keys_, block_;
  std::int64_t first_ = 0, size_ = 0;
};

// Work items of the threads: a block of rows with all keys, or, if there are few blocks, with one key split.
struct Items {
  RowBlocks blocks;
  std::int64_t block_count;
  KeySplits splits;
  std::int64_t row_bytes;  // of one row of a partial result

  explicit Items(const ForwardProblem& p)
      : blocks(p, p.batch, threads_of(p.executor) == 1 ? 1 : kWantedTasks, block_sizes()),
        block_count(p.batch * p.kv_heads * blocks.per_group),
        splits(p, blocks, block_count),
        row_bytes(partial_stride(p.v_width) * (p.dtype == DType::f64 ? 8 : 4)) {}
  bool split() const { return splits.count > 1; }
  std::int64_t count() const { return block_count * splits.count; }
  std::int64_t partial_bytes() const { return splits.blocks * blocks.rows * row_bytes; }  // of all key blocks of a block of rows
};

void move_to(const ForwardProblem& p, const MaskBlocks* blocks, std::int64_t b, std::int64_t kv, ForwardTask& task) {
  set_heads(p, blocks, p.q, p.k, b, kv, task);
  const std::int64_t n = kv * task.heads;
  task.v = plane_of(p.v, b, kv), task.k_scale = plane_of(p.k_scale, b, kv), task.v_scale = plane_of(p.v_scale, b, kv);
  task.out = plane_of(p.out, b, n), task.lse = plane_of(p.lse, b, n), task.attention_weights = plane_of(p.attention_weights, b, n);
}

// The task of the first block of rows. No block is larger, so its scratch is enough for all.
ForwardTask first_block(const ForwardProblem& p, const Items& items, const MaskBlocks* mask) {
  ForwardTask task;
  set_sizes(p, task);
  move_to(p, mask, 0, 0, task);
  items.blocks.place(0, task);
  return task;
}

void forward_document(const ForwardProblem& p) {
  if (p.batch * p.heads * p.queries == 0) return;
  const SdpaKernels& kernels = current_kernels().sdpa;
  const Items items(p);
  const MaskBlocks mask(p);
  const RowBlocks& blocks = items.blocks;
  const ForwardTask first_task = first_block(p, items, &mask);
  const std::int64_t splits = items.splits.count, bytes = kernels.forward_scratch(first_task);
  std::optional<ScratchMemory> partials;
  if (items.split()) partials.emplace(items.block_count * items.partial_bytes(), p.workspace);
  std::vector<std::atomic<std::int64_t>> done(static_cast<std::size_t>(items.split() ? items.block_count : 0));
  const double work = static_cast<double>(blocks.rows * p.keys) * static_cast<double>(p.qk_width + p.v_width);
  const std::int64_t grain = items.split() ? 1 : grain_of(work);
  parallel_for(items.count(), grain, p.executor, [&](std::int64_t first, std::int64_t last) {
    const ScratchMemory scratch(bytes, p.workspace);
    ForwardTask task = first_task;
    // Indices are incremented from item to item, because five divisions per item take as long as a few rows.
    std::int64_t i = first / splits, split = first % splits, block = i % blocks.per_group;
    std::int64_t kv = i / blocks.per_group % p.kv_heads, b = i / blocks.per_group / p.kv_heads;
    const auto next = [&] {
      if (++split < splits) return;
      split = 0, ++i;
      if (++block < blocks.per_group) return;
      block = 0;
      if (++kv < p.kv_heads) return;
      kv = 0, ++b;
    };
    for (std::int64_t item = first; item < last; ++item, next()) {
      if (item > 0 && (item == first || (block == 0 && split == 0))) move_to(p, &mask, b, kv, task);
      blocks.place(block, task);
      if (!items.split()) {
        items.splits.place_all(task);
        kernels.forward(task, scratch.get());
        continue;
      }
      char* const of_block = static_cast<char*>(partials->get()) + i * items.partial_bytes();
      items.splits.place(split, items.row_bytes, of_block, task);
      kernels.forward(task, scratch.get());
      // The thread that finishes a block's last split joins the results of all its key blocks.
      if (++done[static_cast<std::size_t>(i)] < splits) continue;
      task.partial = of_block;
      kernels.merge(task, items.splits.blocks);
    }
  });
}

}  // namespace

void sdpa_forward(const ForwardProblem& p) {
  if (!p.packed()) return forward_document(p);
  for_each_document(p, false, [&](const Document& document, const ForwardProblem& part, int) {
    if (p.attention_weights)
      fill_other_keys(p.attention_weights.slice(-2, document.queries.first, document.queries.last), document.keys, 0);
    forward_document(part);
  });
}

std::string facts_of_forward(const ForwardProblem& p) {
  if (p.batch * p.heads * p.queries == 0) return {};
  if (p.packed()) {
    const auto pairs = [](const Document& d) { return (d.queries.last - d.queries.first) * (d.keys.last - d.keys.first); };
    const Document& largest = *std::max_element(p.documents.begin(), p.documents.end(),
                                                [&](const Document& a, const Document& b) { return pairs(a) < pairs(b); });
    const ForwardProblem part = part_of(p, largest);
    return cat("documents: each by itself; the largest has ", part.queries, " queries and ", part.keys, " keys\n") + facts_of_forward(part);
  }
  const Items items(p);
  const std::int64_t bytes = current_kernels().sdpa.forward_scratch(first_block(p, items, nullptr)),
                     partials = items.block_count * items.partial_bytes();
  return cat("kernel: ", current_kernels().name, ", blocks of ", items.blocks.rows, " queries, ", items.block_count, " of them",
             items.split() ? cat(", each with its keys in ", items.splits.count, " splits") : std::string(), "\n", "scratch: ", bytes,
             " bytes per thread", items.split() ? cat(" and ", partials, " for all splits") : std::string(), "\n",
             p.attention_weights ? "attention weights: from the same pass\n" : "");
}

}  // namespace polyhead::cpu
