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

// All costs in this file are counted in multiply-adds of a kernel: a cost of 1 is the time of one (kMultiplyAddsPerNanosecond).
constexpr double kMergeElement = 12;  // cost of adding one element of a split's partial sums

struct AttentionSizes {
  AttentionSizes() = default;
  explicit AttentionSizes(const Problem& problem);
  std::int64_t rows() const { return group * queries; }

  std::int64_t batch = 1, kv_heads = 1, group = 1;                                   // group: number of query heads that share a key/value head
  std::int64_t queries = 0, keys = 0, qk_width = 0, v_width = 0, element_bytes = 4;  // element_bytes: size of an element of the compute type
  bool banded = false;                                                               // true: query t attends only to the keys [t + lower, t + upper)
  std::int64_t lower = 0, upper = 0;
};

// How evenly the work is distributed. work: the cost on one thread, without splits. longest: the cost of the thread that ends last. It includes waking the
// threads and adding or merging splits.
struct Load {
  double work = 0, longest = 0;
  double efficiency(int threads) const { return work / (threads * longest); }
};

// How the rows and keys of a key/value head are split in the backward pass. The sums of d_q, d_k and d_v over each split begin at 0.
struct BackwardSplits {
  static constexpr std::int64_t kMost = 16;  // largest number of splits of keys; there are fewer splits of rows
  explicit BackwardSplits(const AttentionSizes& sizes);
  std::int64_t rows_per_split, row_splits, keys_per_split, key_splits;
};

// A cell: the pairs of the rows [first_row, last_row) of a key/value head with the keys [first_key, last_key).
struct BackwardCell {
  std::int64_t first_row, last_row, first_key, last_key;
  double cost;
};

// Says along which axes different items add to the same elements of d_bias. Such items run one after the other on one thread (together). If sequences are divided
// into groups, groups may run on different threads, and each group has separate sums of d_bias.
struct Together {
  bool sequences = false, heads = false, rows = false, keys = false;
  bool groups = false;      // true: sequences that share elements of d_bias are divided into groups
  // true: tasks also cover masked pairs, because nothing else writes d_bias of these pairs, or d_sink of rows whose pairs are all masked
  bool every_pair = false;
};

// Returns the number of sequences in a group if all `batch` sequences share d_bias. Each group has separate sums of d_bias, which begin at 0.
std::int64_t sequences_per_group(std::int64_t batch);

struct BackwardSchedule {
  BackwardSchedule(const AttentionSizes& sizes, const Together& together, int threads);

  // An item is one cell of one sequence and one head. If sequences or heads must run together, an item is a cell of all sequences (or of one group of
  // sequences) or of all heads. Items are numbered by cell, then by sequence or group, then by head.
  BackwardSplits splits;
  bool rows_apart = false, keys_apart = false;  // true: a cell has one split of the rows (of the keys); false: a cell has all splits
  bool groups_apart = false;
  // number of sequences (or groups) and of heads that may run on different threads; 1 if one thread runs all of them
  std::int64_t sequences, heads;
  std::vector<BackwardCell> cells;   // cells in descending order of cost
  std::vector<std::int64_t> pieces;  // first item of each piece for parallel_pieces(), and the end; pieces have similar costs
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

  std::int64_t count() const { return static_cast<std::int64_t>(blocks.size()) * heads; }  // total number of blocks for the key/value heads of all sequences

  // An item is a block of rows of a key/value head with all keys, or with one split of the keys. The items of the splits of a block have consecutive numbers.
  // Blocks are numbered by sequence, head and block or, if heaviest_first, by block, sequence and head.
  std::vector<ForwardBlock> blocks;  // blocks of rows of a key/value head
  std::int64_t most_rows = 0;        // number of rows of the largest block
  bool heaviest_first = false;
  std::int64_t heads;  // number of key/value heads of all sequences
  std::int64_t key_splits = 1, first_key = 0, last_key, keys_per_split;
  std::int64_t key_blocks;           // number of key blocks in all key splits together
  std::vector<std::int64_t> pieces;  // first item of each piece for parallel_pieces(), and the end
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
