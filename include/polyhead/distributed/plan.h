// Plans: how the ranks divide heads and keys of an attention problem among them.
#pragma once

#include <cstdint>
#include <string>

#include "polyhead/named_members.h"

#pragma GCC visibility push(default)
namespace polyhead::distributed {

// How the ranks divide heads and keys. The ranks form `ring_ranks` groups of `head_ranks` consecutive ranks. Inside a group each rank computes some heads for
// all queries of the group (DeepSpeed-Ulysses, Jacobs et al. 2023). Between the groups keys and values travel (ring attention, Liu et al. 2023). Fang and Zhao
// 2024 (USP) combine both methods.
struct Plan {
  int head_ranks = 1, ring_ranks = 1;  // head_ranks x ring_ranks is the number of ranks
  friend bool operator==(const Plan&, const Plan&) = default;
};

// Speeds of the machines and of their network. The defaults describe a network of 10 Gbit/s, and ranks that have a few cores each.
struct Links {
  [[no_unique_address]] NamedMembers named_members = NamedMembers();
  int ranks_per_machine = 1;               // number of consecutive ranks that share a machine; ranks 0 to ranks_per_machine - 1 are on the first machine
  double near_bytes_per_second = 5e9;      // speed between two ranks of one machine
  double far_bytes_per_second = 1.25e9;    // speed from one machine to all other machines; the ranks of a machine share it
  double seconds_per_message = 50e-6;
  double multiply_adds_per_second = 2e11;  // speed at which one rank computes attention
};

// Input of choose_plan(): the sizes of the whole problem, not of a rank's part.
struct PlanInput {
  int ranks = 1;
  Links links{};
  std::int64_t batch = 1, heads = 1, kv_heads = 1, queries = 0, keys = 0, qk_width = 0, v_width = 0;
  int element_bytes = 4;
  bool backward = false;          // true: the call is a backward pass that computes the gradients of q, k and v; false: a forward pass
  // true: all heads share a bias or a boolean mask [T,S]; each rank then needs the rows of that tensor for all queries of its group
  bool shared_head_bias = false;
  bool needs_all_keys = false;    // true: the call has an EmptyRows other than zero; each rank must then hold all keys
};

struct PlanChoice {
  Plan plan;
  std::string reason;  // why choose_plan() chose the plan, one fact per line
};

// Returns the plan with the shortest predicted time. If plans are equally fast, the plan with the largest head_ranks wins. A pure function.
PlanChoice choose_plan(const PlanInput& input);

// Returns the number of bytes that one rank receives in a call with this plan.
double received_bytes(const PlanInput& input, Plan plan);

// Predicts the seconds of a call without a mask (docs/scaling.md). The prediction assumes that heads are exchanged before and after the computation, and that
// keys travel during the computation.
double predicted_seconds(const PlanInput& input, Plan plan);

}  // namespace polyhead::distributed
#pragma GCC visibility pop
