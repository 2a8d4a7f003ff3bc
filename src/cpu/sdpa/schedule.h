// Which parts of attention run on different threads. Everything here is a function of sizes and of a number of threads, so tests and
// bench_schedule can call it for other machines. Splits follow from the sizes alone, because they decide the order of sums;
// how they are distributed over threads does not change any bit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpu/block_sizes.h"
#include "problem/problem.h"

namespace polyhead::cpu {

// Costs are in multiply-adds of a kernel (kMultiplyAddsPerNanosecond).
constexpr double kMergeElement = 12;  // cost of adding an element of a split's sums

struct AttentionSizes {
  AttentionSizes() = default;
  explicit AttentionSizes(const Problem& problem);
  std::int64_t rows() const { return group * queries; }

  std::int64_t batch = 1, kv_heads = 1, group = 1;                                   // group: query heads of a key/value head
  std::int64_t queries = 0, keys = 0, qk_width = 0, v_width = 0, element_bytes = 4;  // element_bytes: size of the compute type
  bool banded = false;                                                               // query t has the keys [t + lower, t + upper) only
  std::int64_t lower = 0, upper = 0;
};

// How evenly the threads are loaded. work: cost on one thread; longest: cost of the thread that ends last; both include merging.
struct Load {
  double work = 0, longest = 0;
  double efficiency(int threads) const { return work / (threads * longest); }
};

// Splits of the rows and keys of a key/value head in the backward pass. Each split's sums of d_q, d_k and d_v begin at 0.
struct BackwardSplits {
  static constexpr std::int64_t kMost = 16;  // at most this many splits of rows, and of keys
  explicit BackwardSplits(const AttentionSizes& sizes);
  std::int64_t rows_per_split, row_splits, keys_per_split, key_splits;
};

// A part of a key/value head's pairs: splits [first, last) of its rows and of its keys.
struct BackwardCell {
  std::int64_t first_row, last_row, first_key, last_key;
  double cost;
};

// Which items add into the same elements of d_bias: such items run together, on one thread, in order. Groups of sequences may run on several
// threads, each group with its own sums of d_bias.
struct Together {
  bool sequences = false, heads = false, rows = false, keys = false;
  bool groups = false;      // sequences that are together are cut into groups
  bool every_pair = false;  // every pair has a task, even if it is masked: the task writes its d_bias or, with the first keys, its row's d_sink
};

// Number of sequences in a group, if all `batch` sequences share d_bias. The sums of each group begin at 0.
std::int64_t sequences_per_group(std::int64_t batch);

struct BackwardSchedule {
  BackwardSchedule(const AttentionSizes& sizes, const Together& together, int threads);

  // An item is one cell of all sequences (or of a group) and heads that are together. Items are numbered cell by cell, then by sequence or
  // group, then by head.
  BackwardSplits splits;
  bool rows_apart = false, keys_apart = false;  // true: a cell has a single split of rows (of keys); false: it has all of them
  bool groups_apart = false;
  std::int64_t sequences, heads;     // numbers of sequences (or groups) and of heads that run separately; 1: all run together
  std::vector<BackwardCell> cells;   // the heaviest first
  std::vector<std::int64_t> pieces;  // first item of each piece of parallel_for, and the end: pieces of similar cost
  Load load;

 private:
  void cut(const AttentionSizes& sizes, const Together& together, int threads);
};

// Rows [first, last) of a key/value head: rows of one query head, or whole query heads.
struct ForwardBlock {
  std::int64_t first, last;
  double cost;
};

struct ForwardSchedule {
  // keys_apart: splits of keys may run apart. block_keys: a split consists of whole blocks of block_keys keys.
  ForwardSchedule(const AttentionSizes& sizes, const BlockSizes& block_sizes, std::int64_t block_keys, bool keys_apart, int threads);

  std::int64_t count() const { return static_cast<std::int64_t>(blocks.size()) * heads; }  // blocks of rows of all heads

  // An item is a block of rows of a key/value head with all keys, or with one split of them. The splits of a block follow each other.
  // Blocks are numbered by sequence, head and block; or, heaviest_first, by block, sequence and head.
  std::vector<ForwardBlock> blocks;  // blocks of rows of a key/value head
  std::int64_t most_rows = 0;        // rows of the largest block
  bool heaviest_first = false;
  std::int64_t heads;  // key/value heads of all sequences
  std::int64_t key_splits = 1, first_key = 0, last_key, keys_per_split;
  std::int64_t key_blocks;           // number of key blocks in all splits
  std::vector<std::int64_t> pieces;  // first item of each piece of parallel_pieces, and the end
  Load load;

 private:
  void add_block(const AttentionSizes& sizes, std::int64_t first, std::int64_t last);
  void cut_heads(const AttentionSizes& sizes, std::int64_t per_head, std::int64_t most, bool by_cost);
  void share(const AttentionSizes& sizes, int threads);
};

}  // namespace polyhead::cpu
