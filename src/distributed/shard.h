// The part of a problem that one rank computes: some heads of some queries, first with the keys of one rank, then of the next. Shard also fills in the Problem
// of each block, which the kernels read.
#pragma once

#include <vector>

#include "distributed/blocks.h"
#include "distributed/whole_problem.h"

namespace polyhead::distributed {

// Consecutive query heads: all query heads of some key/value heads, or some query heads of a single one. Head numbers are those of the whole problem.
struct HeadRun {
  KeyRange heads, kv_heads;
};

struct Shard {
  const WholeProblem& whole;
  KeyRange heads{0, 0}, kv_heads{0, 0};  // numbers of the shard's heads in the whole problem
  PairTensors pairs;                     // tensors with these heads (or one head for all) and the shard's rows
  ConstTensorView q;                     // [*,heads,rows,H]
  bool all_keys = false;                 // true: the plan has no ring, so this rank has all keys
  bool widened = false;                  // 16-bit tensors are converted to float32, because partial results are added up
  Executor* executor = nullptr;
  const Workspace* workspace = nullptr;

  const Problem& problem() const { return whole.problem; }
  DType dtype() const { return widened ? accumulation_dtype(problem().dtype) : problem().dtype; }
  std::vector<HeadRun> runs() const;

  // Returns the slice of a tensor [*,heads,rows,...] for a run of heads and a range of rows.
  template <class View>
  View of_rows(const View& view, const HeadRun& run, KeyRange rows) const {
    return view.slice(-3, run.heads.first - heads.first, run.heads.last - heads.first).slice(-2, rows.first, rows.last);
  }
  // Returns the slice of a tensor [*,kv_heads,keys,...] for a run of heads and a range of keys.
  template <class View>
  View of_keys(const View& view, const HeadRun& run, KeyRange keys) const {
    return view.slice(-3, run.kv_heads.first - kv_heads.first, run.kv_heads.last - kv_heads.first).slice(-2, keys.first, keys.last);
  }
  // Returns the slice of a tensor over query-key pairs, or over query rows, for a run of heads and a block. An extent of 1 broadcasts.
  template <class View>
  View rows_of_pairs(View view, bool own_rows, const HeadRun& run, const Block& block) const {
    if (view.extent(-3) == heads.last - heads.first) view = view.slice(-3, run.heads.first - heads.first, run.heads.last - heads.first);
    return own_rows ? view.slice(-2, block.rows.first, block.rows.last) : view;
  }
  template <class View>
  View of_pairs(View view, bool own_rows, const HeadRun& run, const Block& block) const {
    view = rows_of_pairs(view, own_rows, run, block);
    return view.extent(-1) == problem().keys ? view.slice(-1, block.key, block.key + block.keys.last - block.keys.first) : view;
  }

  // Sets the members of `p` that all passes need. `bias` is set only if the bias is converted to another dtype. `p` keeps pointers to `rules`, to `bias` and to
  // the shard's tensors, which must all outlive it.
  void set_problem(const HeadRun& run, const Block& block, Problem& p, KeyRules& rules, Tensor& bias) const;
};

}  // namespace polyhead::distributed
