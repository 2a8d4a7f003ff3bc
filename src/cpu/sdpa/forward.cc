#include <algorithm>
#include <atomic>
#include <optional>
#include <vector>

#include "core/interrupt.h"
#include "core/parallel.h"
#include "core/text.h"
#include "cpu/block_sizes.h"
#include "cpu/scratch_memory.h"
#include "cpu/sdpa/group.h"
#include "cpu/sdpa/schedule.h"
#include "cpu/sdpa/sdpa.h"
#include "cpu/select.h"

namespace polyhead::cpu {
namespace {

// The schedule of the forward pass of a document, and the memory layout of the partial results of key splits.
struct ForwardItems : ForwardSchedule {
  // If attention weights are requested, keys are not split, because a task then writes whole rows of attention weights.
  ForwardItems(const ForwardProblem& p, int threads)
      : ForwardSchedule(AttentionSizes(p), block_sizes(), block_keys(p), !p.attention_weights, threads),
        keys_per_block(block_keys(p)),
        row_bytes(partial_stride(p.v_width) * (p.dtype == DType::f64 ? 8 : 4)) {}
  bool split() const { return key_splits > 1; }
  // Returns the bytes of the partial results of all key blocks of one block of rows
  std::int64_t partial_bytes() const { return split() ? key_blocks * most_rows * row_bytes : 0; }

  // Sets the rows of a task.
  void place(const ForwardBlock& block, ForwardTask& task) const { task.first_row = block.first, task.rows = block.last - block.first; }
  // Sets the keys of a task, and the memory for the results of its key blocks. `partials` is the memory for the results of all splits.
  void place_keys(std::int64_t split, char* partials, ForwardTask& task) const {
    task.first_key = first_key + split * keys_per_split, task.last_key = std::min(last_key, task.first_key + keys_per_split);
    task.partial = partials + split * keys_per_split / keys_per_block * task.rows * row_bytes;
  }

  std::int64_t keys_per_block, row_bytes;  // row_bytes: size of one row of the partial result of a key block

 private:
  static std::int64_t block_keys(const ForwardProblem& p) {
    return forward_key_block(p.qk_width, p.v_width, p.dtype == DType::f64 ? 8 : 4);
  }
};

void move_to(const ForwardProblem& p, const MaskBlocks* blocks, std::int64_t b, std::int64_t kv, ForwardTask& task) {
  set_heads(p, blocks, p.q, p.k, b, kv, task);
  const std::int64_t n = kv * task.heads;
  task.v = head_view(p.v, b, kv), task.k_scale = head_view(p.k_scale, b, kv), task.v_scale = head_view(p.v_scale, b, kv);
  task.out = head_view(p.out, b, n), task.lse = head_view(p.lse, b, n), task.attention_weights = head_view(p.attention_weights, b, n);
}

// Returns the largest task. Scratch that is large enough for this task is large enough for all tasks.
ForwardTask largest_task(const ForwardProblem& p, const ForwardItems& items, const MaskBlocks* mask) {
  ForwardTask task;
  set_sizes(p, task);
  move_to(p, mask, 0, 0, task);
  task.rows = items.most_rows, task.last_key = p.keys;
  return task;
}

void forward_document(const ForwardProblem& p, int threads) {
  if (p.batch * p.heads * p.queries == 0) return;
  const ForwardItems items(p, threads);
  const MaskBlocks mask(p);
  // This call may request AMX tiles from the operating system. If they are refused, another instruction set is used, so choose kernels only after this call.
  const ForwardTask first_task = largest_task(p, items, &mask);
  const auto& kernels = current_kernels_of<ForwardKernels>();
  const auto& merge_kernels = current_kernels_of<MergeKernels>();
  const std::int64_t bytes = kernels.forward_scratch(first_task);
  std::optional<ScratchMemory> partials;
  if (items.split()) partials.emplace(items.count() * items.partial_bytes(), p.workspace);
  std::vector<std::atomic<std::int64_t>> done(static_cast<std::size_t>(items.split() ? items.count() : 0));
  parallel_pieces(items.pieces, p.executor, [&](std::int64_t first, std::int64_t last) {
    const ScratchMemory scratch(bytes, p.workspace);
    ForwardTask task = first_task;
    ForwardCursor at(items, p.kv_heads, first);
    // true: `task` must be set for another head. At first it is a copy of first_task, which is set for head 0.
    bool moved = first > 0;
    for (std::int64_t item = first; item < last; ++item, moved = at.next()) {
      check_interrupt();
      if (moved) move_to(p, &mask, at.sequence, at.kv_head, task);
      items.place(items.blocks[static_cast<std::size_t>(at.block)], task);
      if (!items.split()) {
        kernels.forward(task, scratch.get());
        continue;
      }
      char* const of_block = static_cast<char*>(partials->get()) + at.position * items.partial_bytes();
      items.place_keys(at.split, of_block, task);
      kernels.forward(task, scratch.get());
      // The thread that finishes the last split of a query block merges the results of all key blocks of this query block.
      if (++done[static_cast<std::size_t>(at.position)] < items.key_splits) continue;
      task.partial = of_block;
      merge_kernels.merge(task, items.key_blocks);
    }
  });
}

}  // namespace

void sdpa_forward(const ForwardProblem& p) {
  if (!p.packed()) return forward_document(p, threads_of(p.executor));
  for_each_document(p, false, [&](const Document& document, const ForwardProblem& part, int threads) {
    if (p.attention_weights)
      fill_other_keys(p.attention_weights.slice(-2, document.queries.first, document.queries.last), document.keys, 0);
    forward_document(part, threads);
  });
}

std::string facts_of_forward(const ForwardProblem& p) {
  if (p.batch * p.heads * p.queries == 0) return {};
  if (p.packed()) {
    const auto pairs = [](const Document& d) { return (d.queries.last - d.queries.first) * (d.keys.last - d.keys.first); };
    const Document& largest = *std::max_element(p.documents.begin(), p.documents.end(),
                                                [&](const Document& a, const Document& b) { return pairs(a) < pairs(b); });
    const ForwardProblem part = part_of(p, largest);
    return cat("documents: each is computed separately; the largest has ", part.queries, " queries and ", part.keys, " keys\n") + facts_of_forward(part);
  }
  const ForwardItems items(p, threads_of(p.executor));
  const ForwardTask largest = largest_task(p, items, nullptr);
  const std::int64_t bytes = current_kernels_of<ForwardKernels>().forward_scratch(largest), partials = items.count() * items.partial_bytes();
  return cat("kernel: ", current_kernels().name, ", blocks of ", items.most_rows, " queries, ", items.count(), " of them",
             items.split() ? cat(", the keys of each in ", items.key_splits, " splits") : std::string(), "\n", "scratch: ", bytes,
             " bytes per thread", items.split() ? cat(" and ", partials, " for all splits") : std::string(), "\n",
             largest.native ? "products: bfloat16 pairs\n" : "",
             current_kernels_of<ForwardKernels>().reads_stored_values(largest) ? "few rows: keys and values are read as they are stored, without packed copies\n" : "",
             p.attention_weights ? "attention weights: from the same pass\n" : "");
}

}  // namespace polyhead::cpu
