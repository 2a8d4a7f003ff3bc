#include "polyhead/distributed/plan.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/text.h"

namespace polyhead::distributed {
namespace {

double real(std::int64_t x) { return static_cast<double>(x); }

// Bytes that one rank receives: in the exchange of rows for heads, and in the ring.
struct Received {
  double of_heads = 0;     // bytes of other ranks' rows of q, k and v for this rank's heads, and of other ranks' results for this rank's rows
  double in_one_step = 0;  // bytes of the keys and values of one other group, which a rank receives in a step of the ring
};

std::int64_t most_heads(std::int64_t heads, int ranks) { return (heads + ranks - 1) / ranks; }  // heads of the busiest rank

Received received(const PlanInput& input, Plan plan) {
  const double ranks = input.ranks, others = plan.head_ranks - 1;
  // The forward pass sends q and out for each query row, and k and v for each key row. The backward pass sends twice as much: also d_q and d_out, d_k and d_v.
  const double per_row = real(input.batch) * input.element_bytes * real(input.qk_width + input.v_width) * (input.backward ? 2 : 1);
  const double heads = real(most_heads(input.heads, plan.head_ranks)), kv_heads = real(most_heads(input.kv_heads, plan.head_ranks));
  return {others * per_row * (real(input.queries) / ranks * heads + real(input.keys) / ranks * kv_heads), per_row * kv_heads * real(input.keys) / plan.ring_ranks};
}

// Formats a number with two digits, which is enough to compare plans.
std::string short_number(double x) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, x, std::chars_format::general, 2).ptr};
}

}  // namespace

double received_bytes(const PlanInput& input, Plan plan) {
  const Received bytes = received(input, plan);
  return bytes.of_heads + (plan.ring_ranks - 1) * bytes.in_one_step;
}

double predicted_seconds(const PlanInput& input, Plan plan) {
  const Links& links = input.links;
  const int near = std::min(input.ranks, links.ranks_per_machine);
  const double far = links.far_bytes_per_second / near;  // bandwidth of one rank while all ranks of its machine send
  const auto speed = [&](int ranks) { return ranks <= near ? links.near_bytes_per_second : far; };
  const Received bytes = received(input, plan);
  const double exchange = plan.head_ranks == 1 ? 0 : bytes.of_heads / speed(plan.head_ranks) + 4 * (plan.head_ranks - 1) * links.seconds_per_message;
  const double pairs = real(input.batch) * real(most_heads(input.heads, plan.head_ranks)) * real(input.queries) / plan.ring_ranks * real(input.keys);
  const double products = input.backward ? 2.5 : 1;  // a backward pass has five matrix products, a forward pass has two
  const double step = products * pairs * real(input.qk_width + input.v_width) / links.multiply_adds_per_second / plan.ring_ranks;
  const double travel = bytes.in_one_step / speed(input.ranks) + 2 * links.seconds_per_message;
  const double agreement = 2 * (input.ranks - 1) * links.seconds_per_message;
  return agreement + exchange + step + (plan.ring_ranks - 1) * std::max(step, travel);
}

PlanChoice choose_plan(const PlanInput& input) {
  const Links& links = input.links;
  require(input.ranks >= 1 && links.ranks_per_machine >= 1, "choose_plan: ranks is ", input.ranks, " and ranks_per_machine ", links.ranks_per_machine, "; both must be at least 1");
  for (const double x : {links.near_bytes_per_second, links.far_bytes_per_second, links.multiply_adds_per_second})
    require(x > 0 && std::isfinite(x), "choose_plan: a speed is ", x, "; speeds must be positive and finite");
  require(links.seconds_per_message >= 0, "choose_plan: seconds_per_message is ", links.seconds_per_message, "; it must not be negative");
  const int ranks = input.ranks;
  if (ranks == 1) return {{1, 1}, "one rank: nothing is sent"};
  if (input.needs_all_keys) return {{ranks, 1}, "the heads are divided among all ranks: empty_rows is not zero, so a rank must hold all keys of a row"};
  if (input.shared_head_bias)
    return {{1, ranks}, "a ring of all ranks: all heads share a bias or boolean mask, and ranks that divide the heads would need the rows of this tensor for all queries"};
  Plan best{1, ranks};
  for (int head_ranks = 2; head_ranks <= ranks; ++head_ranks) {
    const Plan plan{head_ranks, ranks / head_ranks};
    if (ranks % head_ranks == 0 && predicted_seconds(input, plan) <= predicted_seconds(input, best)) best = plan;
  }
  const auto of_plan = [&](Plan plan) { return cat(short_number(predicted_seconds(input, plan)), " s and ", short_number(received_bytes(input, plan) / 1048576), " MiB received"); };
  std::string reason = best.head_ranks == ranks ? std::string("the heads are divided among all ranks")
                       : best.head_ranks == 1   ? std::string("a ring of all ranks")
                                                : cat("the heads are divided among the ", best.head_ranks, " ranks of a group, and ", best.ring_ranks, " groups form a ring");
  append(reason, cat(": predicted ", of_plan(best), input.backward ? " in a backward pass" : " in a forward pass"));
  if (best.head_ranks > 1) append(reason, cat("; a ring of all ranks: ", of_plan({1, ranks})));
  if (best.ring_ranks > 1) append(reason, cat("; without a ring: ", of_plan({ranks, 1})));
  return {best, reason};
}

}  // namespace polyhead::distributed
