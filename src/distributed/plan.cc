#include "polyhead/distributed/plan.h"

#include <algorithm>

#include "core/text.h"

namespace polyhead::distributed {
namespace {

double mebibytes(double bytes) { return static_cast<double>(static_cast<std::int64_t>(bytes / 1048576 * 10 + 0.5)) / 10; }

}  // namespace

double received_bytes(const PlanInput& input, Plan plan) {
  const auto real = [](auto x) { return static_cast<double>(x); };
  const double ranks = input.ranks, group = plan.head_ranks, ring = plan.ring_ranks;
  const double widths = real(input.qk_width + input.v_width);
  // Inside a group: rows of this rank's heads from the other members, and its rows of the other heads' results.
  const double own_heads = real(input.heads) / group, own_kv_heads = std::max(real(input.kv_heads) / group, input.kv_heads > 0 ? 1.0 : 0.0);
  const double others = group - 1;
  const double exchanged = others * (real(input.queries) / ranks * own_heads * widths + real(input.keys) / ranks * own_kv_heads * widths);
  // In the ring: keys and values of the other groups.
  const double travelling = (ring - 1) * real(input.keys) / ring * own_kv_heads * widths;
  return real(input.batch) * input.element_bytes * (exchanged + travelling);
}

PlanChoice choose_plan(const PlanInput& input) {
  require(input.ranks >= 1 && input.ranks_per_machine >= 1, "choose_plan: ", input.ranks, " ranks, ", input.ranks_per_machine, " on a machine; both must be at least 1");
  const int ranks = input.ranks, near = std::min(ranks, input.ranks_per_machine);
  if (ranks == 1) return {{1, 1}, "one rank: nothing is sent"};
  if (input.needs_all_keys)
    return {{ranks, 1}, "heads on all ranks: with empty_rows that are not zero a rank must see all keys of a row"};
  if (input.shared_head_bias)
    return {{1, ranks}, "a ring of all ranks: a bias or boolean of all pairs has one head for all, of which ranks with heads would each need the rows of all others"};
  // The largest divisor of the ranks that every member of a group has a query head for; between machines a ring.
  int head_ranks = 1;
  for (int i = 1; i <= ranks; ++i) {
    if (ranks % i == 0 && i <= input.heads && (near == ranks || near % i == 0)) head_ranks = i;
  }
  const auto received = [&](int heads) { return received_bytes(input, {heads, ranks / heads}); };
  // Few key/value heads make a ring cheaper: then they are not sent to every member.
  for (int i = head_ranks - 1; i >= 1; --i) {
    if (ranks % i == 0 && (near == ranks || near % i == 0) && received(i) < received(head_ranks)) head_ranks = i;
  }
  const Plan plan{head_ranks, ranks / head_ranks};
  std::string reason = plan.head_ranks == ranks ? std::string("heads on all ranks")
                       : plan.head_ranks == 1   ? std::string("a ring of all ranks")
                                                : cat("heads on groups of ", plan.head_ranks, " ranks, and a ring of ", plan.ring_ranks, " groups");
  append(reason, cat(": a rank receives ", mebibytes(received(head_ranks)), " MiB in a forward pass; a ring alone would be ", mebibytes(received(1)), " MiB"));
  if (input.ranks_per_machine < ranks) append(reason, cat("\nheads are exchanged inside a machine (", input.ranks_per_machine, " ranks) only"));
  return {plan, reason};
}

}  // namespace polyhead::distributed
