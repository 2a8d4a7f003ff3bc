// Cuts a random problem into one part for each rank of distributed attention, and joins the results of the ranks.
#pragma once

#include "polyhead/distributed.h"
#include "support/kernel_case.h"
#include "support/thread_ranks.h"

namespace polyhead::test {

using distributed::Positions;
using Slices = std::vector<std::vector<Positions>>;  // for each rank, the ranges of its positions

inline std::int64_t count_of(const std::vector<Positions>& ranges) {
  std::int64_t count = 0;
  for (const Positions& range : ranges) count += range.count();
  return count;
}

// Returns the rows of `view` at the given positions of an axis as one contiguous tensor.
inline Tensor rows_at(ConstTensorView view, int axis, const std::vector<Positions>& ranges) {
  Shape shape = view.shape();
  shape[axis] = count_of(ranges);
  Tensor rows(view.dtype(), shape);
  std::int64_t first = 0;
  for (const Positions& range : ranges) {
    copy(view.slice(axis, range.first, range.last), rows.view().slice(axis, first, first + range.count()));
    first += range.count();
  }
  return rows;
}
inline void put_rows(ConstTensorView rows, TensorView to, int axis, const std::vector<Positions>& ranges) {
  std::int64_t first = 0;
  for (const Positions& range : ranges) {
    copy(rows.slice(axis, first, first + range.count()), to.slice(axis, range.first, range.last));
    first += range.count();
  }
}

inline Slices draw_slices(Random& random, distributed::SliceOrder order, std::int64_t length, int ranks) {
  Slices slices;
  if (order == distributed::SliceOrder::zigzag || random.coin()) {
    for (int rank = 0; rank < ranks; ++rank) slices.push_back(distributed::slice_of(order, length, rank, ranks));
    return slices;
  }
  std::vector<std::int64_t> bounds{0, length};  // ends of ranges of random length; a range may be empty
  for (int rank = 1; rank < ranks; ++rank) bounds.push_back(random.integer(0, length));
  std::sort(bounds.begin(), bounds.end());
  for (std::size_t rank = 0; rank + 1 < bounds.size(); ++rank) {
    slices.emplace_back();
    if (bounds[rank] < bounds[rank + 1]) slices.back().push_back({bounds[rank], bounds[rank + 1]});
  }
  return slices;
}

// The part of a problem that one rank passes to distributed attention, and the results that this rank receives.
struct RankPart {
  AttentionCase c;
  AttentionOutputs outputs;
  bool bias_rows = false, sink_rows = false;  // true if d_bias or d_sink has a row for each of the rank's queries
};

// Returns the part of one rank. If `random` is given, the tensors have random layouts, else they are contiguous.
inline RankPart part_of_rank(const AttentionCase& whole, const std::vector<Positions>& queries, const std::vector<Positions>& keys, Random* random = nullptr) {
  RankPart part;
  AttentionCase& c = part.c;
  c.dtype = whole.dtype, c.options = whole.options, c.sizes = whole.sizes;
  c.sizes.queries = count_of(queries), c.sizes.keys = count_of(keys);
  const auto rows = [&](const ConstTensorView& view, int axis, const std::vector<Positions>& ranges) {
    Tensor contiguous = rows_at(view, axis, ranges);
    return random ? c.keep(random->strided_copy(contiguous)) : c.keep(std::move(contiguous));
  };
  c.q = rows(whole.q, -2, queries), c.d_out = rows(whole.d_out, -2, queries);
  c.k = rows(whole.k, -2, keys), c.v = rows(whole.v, -2, keys);
  const auto cut = [&](ConstTensorView& view, int axis) {
    const bool has_rows = view && view.rank() >= -axis && view.extent(axis) == whole.sizes.queries;
    if (has_rows) view = rows(view, axis, queries);
    return has_rows;
  };
  SdpaOptions& o = c.options;
  part.bias_rows = cut(o.bias, -2);
  cut(o.dropout.keep, -2), cut(o.mask.attend, -2), cut(o.mask.block, -2);
  for (ConstTensorView* bounds : {&o.mask.key_starts, &o.mask.key_lengths}) {
    if (*bounds && bounds->rank() == whole.sizes.lead.size() + 1) cut(*bounds, -1);
  }
  if (o.sink && o.sink.rank() != 1) part.sink_rows = cut(o.sink, -1);
  part.outputs = c.make_outputs(random);
  return part;
}

struct DistributedRun {
  distributed::SliceOrder order{};
  distributed::Plan plan;
  Slices queries, keys;
  int ranks() const { return plan.head_ranks * plan.ring_ranks; }
};

// Runs the forward and the backward pass of one rank.
inline void run_part(distributed::Communicator& communicator, RankPart& part, const distributed::DistributedOptions& options, int threads = 1) {
  LimitedThreads executor(threads);
  part.c.options.executor = &executor;
  const AttentionCase& p = part.c;
  const AttentionOutputs& o = part.outputs;
  distributed::sdpa_forward(communicator, {.q = p.q, .k = p.k, .v = p.v, .out = o.out, .lse = o.lse}, p.options, options);
  distributed::sdpa_backward(communicator,
                             {.q = p.q, .k = p.k, .v = p.v, .out = o.out, .lse = o.lse, .d_out = p.d_out, .d_q = o.d_q, .d_k = o.d_k, .d_v = o.d_v,
                              .d_bias = o.d_bias, .d_relative_bias = o.d_relative_bias, .d_sink = o.d_sink},
                             p.options, options);
}

// Runs the forward and the backward pass on all ranks, and returns the results of the whole problem. `errors` receives the messages of exceptions that ranks threw.
inline AttentionOutputs run_distributed(AttentionCase& c, const DistributedRun& run, std::vector<std::string>& errors, Random* random = nullptr, int threads = 1) {
  std::vector<RankPart> parts;
  for (int rank = 0; rank < run.ranks(); ++rank)
    parts.push_back(part_of_rank(c, run.queries[static_cast<std::size_t>(rank)], run.keys[static_cast<std::size_t>(rank)], random));
  const distributed::DistributedOptions options{.order = run.order, .plan = run.plan, .timeout = std::chrono::seconds(60)};
  errors = run_ranks(run.ranks(), [&](distributed::Communicator& communicator) {
    run_part(communicator, parts[static_cast<std::size_t>(communicator.rank())], options, threads);
  });
  for (const RankPart& part : parts) EXPECT_TRUE(padding_is_intact(part.c.strided()));
  const AttentionOutputs all = c.make_outputs();
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    const AttentionOutputs& o = parts[rank].outputs;
    put_rows(o.out, all.out, -2, run.queries[rank]), put_rows(o.lse, all.lse, -1, run.queries[rank]), put_rows(o.d_q, all.d_q, -2, run.queries[rank]);
    put_rows(o.d_k, all.d_k, -2, run.keys[rank]), put_rows(o.d_v, all.d_v, -2, run.keys[rank]);
    if (o.d_bias) parts[rank].bias_rows ? put_rows(o.d_bias, all.d_bias, -2, run.queries[rank]) : copy(o.d_bias, all.d_bias);
    if (o.d_sink) parts[rank].sink_rows ? put_rows(o.d_sink, all.d_sink, -1, run.queries[rank]) : copy(o.d_sink, all.d_sink);
    if (o.d_relative_bias) copy(o.d_relative_bias, all.d_relative_bias);
    if (rank > 0 && o.d_bias && !parts[rank].bias_rows) {
      EXPECT_TRUE(same_bits(o.d_bias, parts[0].outputs.d_bias)) << "a shared gradient differs between ranks";
    }
  }
  return all;
}

// Returns a rank's part of the results of the whole problem, in the form that run_part() writes.
inline AttentionOutputs expected_part(AttentionCase& c, const RankPart& part, const AttentionOutputs& whole, const std::vector<Positions>& queries, const std::vector<Positions>& keys) {
  AttentionOutputs o;
  o.out = c.keep(rows_at(whole.out, -2, queries)), o.lse = c.keep(rows_at(whole.lse, -1, queries)), o.d_q = c.keep(rows_at(whole.d_q, -2, queries));
  o.d_k = c.keep(rows_at(whole.d_k, -2, keys)), o.d_v = c.keep(rows_at(whole.d_v, -2, keys));
  o.d_bias = part.bias_rows ? c.keep(rows_at(whole.d_bias, -2, queries)) : whole.d_bias;
  o.d_sink = part.sink_rows ? c.keep(rows_at(whole.d_sink, -1, queries)) : whole.d_sink;
  o.d_relative_bias = whole.d_relative_bias;
  return o;
}

// Removes from the case what distributed attention refuses: block lists, and a bias whose elements share memory (the case gets a copy without shared memory).
inline void leave_out_what_ranks_refuse(AttentionCase& c) {
  if (c.table) c.options.bias = c.keep(Tensor::copy_of(c.options.bias)), c.table = {};
  c.options.mask.blocks = {};
}

// Draws a plan and the positions of each rank. ranks == 0: the number of ranks is random, from 1 to 8.
inline DistributedRun draw_run(Random& random, const AttentionCase& c, int ranks = 0) {
  DistributedRun run;
  run.order = random.pick({distributed::SliceOrder::contiguous, distributed::SliceOrder::zigzag});
  const bool any = ranks == 0;
  if (any) ranks = static_cast<int>(random.integer(1, 8));
  std::vector<int> divisors;
  for (int i = 1; i <= ranks; ++i) {
    if (ranks % i == 0) divisors.push_back(i);
  }
  run.plan.head_ranks = divisors[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(divisors.size()) - 1))];
  if (c.options.empty_rows != EmptyRows::zero) run.plan.head_ranks = ranks;
  run.plan.ring_ranks = ranks / run.plan.head_ranks;
  run.queries = draw_slices(random, run.order, c.sizes.queries, ranks);
  run.keys = draw_slices(random, run.order, c.sizes.keys, ranks);
  while (std::all_of(run.queries.begin(), run.queries.end(), [](const auto& ranges) { return count_of(ranges) == 1; })) {
    // If every rank has one query, a tensor of one row may be the rank's row or a row for all queries (distributed::OneRow). Therefore draw other positions.
    if (ranks == 1) break;
    run.order = distributed::SliceOrder::contiguous;
    run.queries = draw_slices(random, run.order, c.sizes.queries, ranks), run.keys = draw_slices(random, run.order, c.sizes.keys, ranks);
  }
  return run;
}

}  // namespace polyhead::test
