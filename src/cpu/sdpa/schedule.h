// Decides how the work of a call is divided among threads. Schedules depend only on sizes and on the number of threads, so tests and bench_schedule can compute
// schedules for other machines. Splits of rows and keys depend on the sizes alone, because splits decide the order of sums. How splits are distributed over threads
// does not change any bit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpu/block_sizes.h"
#include "problem/problem.h"

namespace polyhead::cpu {

// All costs are numbers of multiply-adds that a kernel does in the same time (kMultiplyAddsPerNanosecond).
constexpr double kMergeElement = 12;  // cost of adding an element of a split's sums

struct AttentionSizes {
  AttentionSizes() = default;
  explicit AttentionSizes(const Problem& problem);
  std::int64_t rows() const { return group * queries; }

  std::int64_t batch = 1, kv_heads = 1, group = 1;                                   // group: number of query heads for each key/value head
  std::int64_t queries = 0, keys = 0, qk_width = 0, v_width = 0, element_bytes = 4;  // element_bytes: size of the compute type
  bool banded = false;                                                               // true: query t attends only to the keys [t + lower, t + upper)
  std::int64_t lower = 0, upper = 0;
};

// How evenly the work is distributed. work: the cost on one thread, without splits; longest: the cost of the thread that ends last,
// including the waking of threads and the adding or merging of splits.
struct Load {
  double work = 0, longest = 0;
  double efficiency(int threads) const { return work / (threads * longest); }
};

// How the rows and keys of a key/value head are split in the backward pass. The sums of d_q, d_k and d_v over each split begin at 0.
struct BackwardSplits {
  static constexpr std::int64_t kMost = 16;  // largest number of splits of keys; splits of rows are fewer
  explicit BackwardSplits(const AttentionSizes& sizes);
  std::int64_t rows_per_split, row_splits, keys_per_split, key_splits;
};

// A cell: some pairs of a key/value head, namely the rows [first_row, last_row) with the keys [first_key, last_key).
struct BackwardCell {
  std::int64_t first_row, last_row, first_key, last_key;
  double cost;
};

// Says along which axes different items add to the same elements of d_bias. Such items run one after the other on one thread (together). If sequences are divided
// into groups, groups may run on different threads, and each group has separate sums of d_bias.
struct Together {
  bool sequences = false, heads = false, rows = false, keys = false;
  bool groups = false;      // true: sequences that share elements of d_bias are divided into groups
  bool every_pair = false;  // true: tasks also cover masked pairs, because nothing else writes their d_bias, or the d_sink of their rows
};

// Returns the number of sequences in a group if all `batch` sequences share d_bias. Each group has separate sums of d_bias, which begin at 0.
std::int64_t sequences_per_group(std::int64_t batch);

struct BackwardSchedule {
  BackwardSchedule(const AttentionSizes& sizes, const Together& together, int threads);

  // An item is one cell of a sequence and a head or, where sequences or heads must run together, of all sequences (of one group of sequences) or all heads. Items
  // are numbered by cell, then by sequence or group, then by head.
  BackwardSplits splits;
  bool rows_apart = false, keys_apart = false;  // true: a cell has a single split of rows (of keys); false: a cell has all splits
  bool groups_apart = false;
  std::int64_t sequences, heads;     // number of sequences (or groups) and of heads that may run on different threads; 1: one thread runs all of them
  std::vector<BackwardCell> cells;   // in descending order of cost
  std::vector<std::int64_t> pieces;  // first item of each piece of parallel_pieces, and the end; pieces have similar costs
  Load load;

 private:
  void cut(const AttentionSizes& sizes, const Together& together, int threads);
};

// The rows [first, last) of a key/value head. They are rows of a single query head, or all rows of several query heads.
struct ForwardBlock {
  std::int64_t first, last;
  double cost;
};

struct ForwardSchedule {
  // keys_apart: splits of keys may run on different threads. block_keys: the number of keys of a key block; a split consists of whole key blocks.
  ForwardSchedule(const AttentionSizes& sizes, const BlockSizes& block_sizes, std::int64_t block_keys, bool keys_apart, int threads);

  std::int64_t count() const { return static_cast<std::int64_t>(blocks.size()) * heads; }  // number of blocks, added up over the key/value heads of all sequences

  // An item is a block of rows of a key/value head with all keys, or with one split of the keys. The items of the splits of a block have consecutive numbers.
  // Blocks are numbered by sequence, head and block or, if heaviest_first, by block, sequence and head.
  std::vector<ForwardBlock> blocks;  // blocks of rows of a key/value head
  std::int64_t most_rows = 0;        // rows of the largest block
  bool heaviest_first = false;
  std::int64_t heads;  // number of key/value heads of all sequences
  std::int64_t key_splits = 1, first_key = 0, last_key, keys_per_split;
  std::int64_t key_blocks;           // number of key blocks in all splits
  std::vector<std::int64_t> pieces;  // first item of each piece of parallel_pieces, and the end
  Load load;

 private:
  void add_block(const AttentionSizes& sizes, std::int64_t first, std::int64_t last);
  void cut_heads(const AttentionSizes& sizes, std::int64_t per_head, std::int64_t most, bool by_cost);
  void share(const AttentionSizes& sizes, int threads);
};

// Goes through the items of a schedule in the order of their numbers. It increments indices, because computing them by divisions would take as long as computing
// a few rows.
class ForwardCursor {
 public:
  ForwardCursor(const ForwardSchedule& schedule, std::int64_t kv_heads, std::int64_t item);

  // Moves to the next item. Returns true if that item belongs to another head or sequence.
  bool next();

  std::int64_t sequence, kv_head;
  std::int64_t block;     // index in ForwardSchedule::blocks
  std::int64_t split;     // split of the keys
  std::int64_t position;  // number of the block among ForwardSchedule::count() blocks

 private:
  void next_head();

  std::int64_t blocks_, splits_, kv_heads_, sequences_;
  bool heads_first_;  // true: the next block is that of the next head
};

}  // namespace polyhead::cpu
